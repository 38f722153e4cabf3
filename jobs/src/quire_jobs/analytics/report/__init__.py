"""Reports that a person would rather look at than read: markup, charts, pages. Knows no Spark and no cluster."""
