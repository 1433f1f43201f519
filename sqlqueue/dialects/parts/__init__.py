"""The parts that adapters are composed of: everything that differs between engines, independent of any engine.

Each is a class that does what standard SQL does; engines derive from it.
"""
