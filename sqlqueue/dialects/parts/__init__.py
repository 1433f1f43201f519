"""The parts that adapters are composed of: everything that differs between engines, independent of any engine."""
