"""Docker's health check: exits with an error unless QUIRE_HEALTH_URL returns 200. Kubernetes has its own probes."""

import os
import ssl
import sys
import urllib.request

# The process in this container needs no verification.
unchecked = ssl._create_unverified_context()
try:
    urllib.request.urlopen(os.environ["QUIRE_HEALTH_URL"], timeout=5, context=unchecked).close()
except OSError as error:
    sys.exit(f"{os.environ['QUIRE_HEALTH_URL']}: {error}")
