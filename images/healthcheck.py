"""What Docker asks now and then (Kubernetes has its own probes): is /healthz on QUIRE_HEALTH_URL answered with 200?"""

import os
import ssl
import sys
import urllib.request

# Its own process at its own address: who it is need not be proved.
unchecked = ssl._create_unverified_context()
try:
    urllib.request.urlopen(os.environ["QUIRE_HEALTH_URL"], timeout=5, context=unchecked).close()
except OSError as error:
    sys.exit(f"{os.environ['QUIRE_HEALTH_URL']}: {error}")
