"""What differs between engines, in small parts.  A part here knows no engine; an adapter is made of its own."""
