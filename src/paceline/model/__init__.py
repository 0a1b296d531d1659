"""From spec and calibration to predictions; no framework is imported, nothing prints or plots.

Kept empty of imports: training processes use `model.split` without the libraries that the rest of it needs.
"""
