"""From recorded values to figures, verdicts, charts and pages."""
