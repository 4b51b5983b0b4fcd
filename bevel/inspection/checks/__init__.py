"""The checks of `doctor`. Each is a function of a `CompiledStep`."""
