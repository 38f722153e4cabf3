"""Exposes counters to Prometheus through `prometheus_client`. Only HTTP ports and files of metrics import it.

Hot paths keep plain counters and import nothing of this package. A collector reads them at each scrape and yields the
library's metric families; a process or server object has its own registry, so that several share a process.
"""
