"""From measurements and predictions to findings: where the step goes, why it differs, what would help; data only."""
