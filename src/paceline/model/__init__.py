"""From spec and calibration to predictions; no framework is imported, nothing prints or plots."""
