"""A validation as a document: one HTML file that needs nothing else, or Markdown for a model card."""
