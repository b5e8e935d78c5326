"""Device, precision, CPU threads and settings of the interpreter."""
