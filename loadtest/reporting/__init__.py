"""From what was recorded to figures, verdicts, charts and pages."""
