"""Visual reports: markup, charts, pages. Independent of Spark and the cluster."""
