"""Running a model with torch: loading, paged attention, sampling. The only folder with torch."""
