"""From findings to what people look at: terminal text, one self-contained HTML page, exports; shows, never computes."""
