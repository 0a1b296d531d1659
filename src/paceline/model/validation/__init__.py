"""Predicted against published: one table over everything the product ships figures for."""
