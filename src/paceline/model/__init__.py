"""From spec and calibration to predictions; no framework is imported, nothing prints or plots."""

from paceline.model.calibration import CATALOG_ONLY, Calibration, read_calibration, write_calibration
from paceline.model.prediction import TERMS, Curve, Estimate, Prediction
from paceline.model.question import Question
from paceline.model.scaling import predict_curve

__all__ = [
    "CATALOG_ONLY",
    "TERMS",
    "Calibration",
    "Curve",
    "Estimate",
    "Prediction",
    "Question",
    "predict_curve",
    "read_calibration",
    "write_calibration",
]
