"""Where recordings come from.  Only the standard library: they run where nothing is installed."""
