"""Clocks, DAWNBench files, MLPerf log, pictures, comparison."""
