"""One self-contained HTML page: sections, plots and tables that need no network."""
