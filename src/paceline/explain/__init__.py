"""Analysis of measurements: breakdowns, gaps, stragglers, findings and residuals, as data."""
