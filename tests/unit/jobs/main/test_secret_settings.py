import pytest

from quire_jobs.main.secret_settings import HIDDEN, holds_secret, redacted, secrets_of

SECRET = (
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.s3a.bucket.reports.secret.key",
    "spark.hadoop.fs.s3a.proxy.password",
    "spark.hadoop.fs.azure.account.key.cold.blob.core.windows.net",
    "spark.hadoop.fs.azure.account.oauth2.client.secret.cold.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.reports.cold.blob.core.windows.net",
    "spark.hadoop.fs.gs.auth.service.account.private.key",
    "spark.authenticate.secret",
    "spark.ssl.keyPassword",
    "spark.ssl.ui.trustStorePassword",
    "spark.kubernetes.authenticate.driver.oauthToken",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
    "spark.executorEnv.QUIRE_TOKEN",
    "spark.sql.catalog.lake.credential",
    "spark.sql.catalog.lake.s3.access-key-id",
    "spark.sql.catalog.lake.jdbc.password",
    "spark.hadoop.javax.jdo.option.ConnectionPassword",
    "spark.kafka.sasl.jaas.config",
)
OPEN = (
    "spark.hadoop.fs.s3a.aws.credentials.provider",
    "spark.hadoop.fs.s3a.endpoint.region",
    "spark.hadoop.fs.s3a.path.style.access",
    "spark.hadoop.hadoop.security.credential.provider.path",
    "spark.hadoop.fs.azure.sas.token.provider.type.cold.dfs.core.windows.net",
    "spark.hadoop.fs.azure.account.oauth2.refresh.token.endpoint",
    "spark.hadoop.google.cloud.auth.service.account.json.keyfile",
    "spark.kubernetes.executor.secrets.gcs-credentials",
    "spark.kubernetes.driver.secretKeyRef.DB_PASSWORD",
    "spark.kubernetes.kerberos.tokenSecret.name",
    "spark.kubernetes.kerberos.tokenSecret.itemKey",
    "spark.kubernetes.driver.label.token",
    "spark.authenticate",
    "spark.authenticate.secret.file",
    "spark.authenticate.secret.driver.file",
    "spark.authenticate.secretBitLength",
    "spark.kubernetes.authenticate.driver.oauthTokenFile",
    "spark.kubernetes.authenticate.submission.clientKeyFile",
    "spark.kubernetes.driver.secrets.orders-bucket",
    "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY",
    "spark.network.crypto.enabled",
    "spark.network.crypto.keyFactoryAlgorithm",
    "spark.security.credentials.hive.enabled",
    "spark.security.credentials.renewalRatio",
    "spark.sql.catalog.lake.token-refresh-enabled",
    "spark.ssl.keyStoreType",
    "spark.sql.shuffle.partitions",
    "",
)
"""Some of these contain words for secrets, but their values are files, classes, switches or names of Secrets."""


@pytest.mark.parametrize("key", SECRET)
def test_a_key_that_holds_a_secret_is_recognized(key: str) -> None:
    assert holds_secret(key)


@pytest.mark.parametrize("key", OPEN)
def test_a_key_that_only_refers_to_a_secret_is_shown(key: str) -> None:
    assert not holds_secret(key)


def test_secrets_are_removed_from_texts_and_json_values() -> None:
    settings = {"spark.hadoop.fs.s3a.secret.key": "abc", "spark.ssl.keyPassword": "xabcx", "spark.x": "y"}
    secrets = secrets_of(settings | {"spark.authenticate.secret": ""})
    assert secrets == ("xabcx", "abc"), "an empty secret is ignored"
    row = {"error": "key abc is wrong", "problems": [{"reason": "xabcx"}], "counts": {"y": 3}, "left": None}
    assert redacted(row, secrets) == {
        "error": f"key {HIDDEN} is wrong",
        "problems": [{"reason": HIDDEN}],
        "counts": {"y": 3},
        "left": None,
    }
