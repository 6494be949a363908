"""The audit of a model in memory: one call from model and data to a result that shows, plots and saves itself."""
