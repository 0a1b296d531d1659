"""Exports for other tools: traces, MLPerf logging lines, TensorBoard scalars, Markdown, CSV and Parquet."""
