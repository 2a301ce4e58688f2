"""Fetches the sets of jars that sessions need beyond Spark's own jars, once, with Ivy, and checks them.

`python -m jobs.spark.jars` fetches Delta's set, and `python -m jobs.spark.jars kafka` another one (`JAR_SETS`). A tick
itself fetches the sets that its sources need.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console

# ------------------------------------------------------------------
# Lists the sets of jars that a Spark session may need beyond Spark's own jars. Each jar is locked by its SHA-256.
#
# A set is fetched by its name (`python -m jobs.spark.jars kafka`). A session that needs it names it in
# `SparkConfig.jar_sets`. To add a set, let Ivy resolve its coordinates, and record the jars that it brings.


CARRIED_BY_SPARK: Final = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.lz4:*",
    "org.roaringbitmap:*",
    "org.scala-lang.modules:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""Jars on which packages depend, but which Spark has too, mostly in newer versions.

The class path must have only one version of each.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """Jars that belong together. `locked` gives the SHA-256 of each. A jar with another SHA-256 is refused."""

    name: str
    serves: str
    """The name of the system that needs the jars, in messages: "Kafka"."""
    coordinates: tuple[str, ...]
    """The Maven coordinates of the packages."""
    locked: Mapping[str, str]
    left_out: tuple[str, ...] = CARRIED_BY_SPARK
    """The packages that Ivy must leave out."""
    apart: bool = False
    """True for jars that run in a process of their own, and that no Spark session may have on its class path."""


DELTA: Final = "delta"
KAFKA: Final = "kafka"
S3A: Final = "s3a"
DEBEZIUM: Final = "debezium"

_DELTA_RELEASE: Final = "4.4.0"
_DELTA_OF_SPARK: Final = {
    "4.0": "49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104",
    "4.1": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "4.2": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
}
"""The SHA-256 of Delta's jar for each release of Spark. Delta has published no jar for Spark 4.3."""
_DELTA_OF_ALL: Final = {
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
    "jackson-datatype-jdk8-2.13.5.jar": "e58761751fea8a00dc626aae1c5f1be38c5cfd487aeb333d933a4ab5f5a73c55",
}

_KAFKA_4_2: Final = (
    "4.2.0",
    {
        "commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
        "kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
        "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        "spark-token-provider-kafka-0-10_2.13-4.2.0.jar": "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c",  # noqa: E501
    },
)
_KAFKA_OF_SPARK: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "4.0": (
        "4.0.0",
        {
            "commons-pool2-2.12.0.jar": "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b",
            "kafka-clients-3.9.0.jar": "15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18",
            "spark-sql-kafka-0-10_2.13-4.0.0.jar": "33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3",
            "spark-token-provider-kafka-0-10_2.13-4.0.0.jar": "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",  # noqa: E501
        },
    ),
    "4.1": (
        "4.1.1",
        {
            "commons-pool2-2.12.1.jar": "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
            "kafka-clients-3.9.1.jar": "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
            "spark-sql-kafka-0-10_2.13-4.1.1.jar": "9c1ce986f548e6b1dcb0e2dfe2f253a0bc58f2232a32a0c9c6c674dd25a8570c",
            "spark-token-provider-kafka-0-10_2.13-4.1.1.jar": "e510adc37b03d01d0a190d0dab472b5538e05eaa77454f7e9477156d7a6820ae",  # noqa: E501
        },
    ),
    "4.2": _KAFKA_4_2,
    "4.3": _KAFKA_4_2,
}
"""For each release of Spark, the release of its connector to Kafka, and the connector's jars."""

_HADOOP_3_5: Final = (
    "3.5.0",
    {
        "analyticsaccelerator-s3-1.3.1.jar": "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
        "hadoop-aws-3.5.0.jar": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
        "wildfly-openssl-2.2.5.Final.jar": "71fb7932f99a727edb23c5a2cb8c6855ac7196fad41aa0669b3998e277165154",
    },
)
_HADOOP_OF_SPARK: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "4.0": (
        "3.4.1",
        {
            "hadoop-aws-3.4.1.jar": "01334a07e179cae2b7e251f24857f11e3759108c9d6a79dcbe362a4295227da2",
            "wildfly-openssl-1.1.3.Final.jar": "4e7d50a877822ba7561fa6a0109691b30b23a784eba3f3f8fbbf5ea866500786",
        },
    ),
    "4.1": (
        "3.4.2",
        {
            "analyticsaccelerator-s3-1.2.1.jar": "11029552e37408e41e689b20150f4b372e0b4f232de321ccafd0fcf443cdfb5a",
            "hadoop-aws-3.4.2.jar": "d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9",
            "wildfly-openssl-2.1.4.Final.jar": "95decbc5d088b40e85f58d7726b8c8f4e3be6312a0f2660c2d714a23cee80279",
        },
    ),
    "4.2": _HADOOP_3_5,
    "4.3": _HADOOP_3_5,
}
"""For each release of Spark, its release of Hadoop, and the jars of that Hadoop's reader of S3."""
_AWS_SDK: Final = {
    "annotations-2.35.4.jar": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
    "apache-client-2.35.4.jar": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
    "arns-2.35.4.jar": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
    "auth-2.35.4.jar": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
    "aws-core-2.35.4.jar": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
    "aws-query-protocol-2.35.4.jar": "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
    "aws-xml-protocol-2.35.4.jar": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
    "checksums-2.35.4.jar": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
    "checksums-spi-2.35.4.jar": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
    "crt-core-2.35.4.jar": "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
    "endpoints-spi-2.35.4.jar": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
    "eventstream-1.0.1.jar": "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
    "http-auth-2.35.4.jar": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
    "http-auth-aws-2.35.4.jar": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
    "http-auth-aws-eventstream-2.35.4.jar": "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
    "http-auth-spi-2.35.4.jar": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
    "http-client-spi-2.35.4.jar": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
    "identity-spi-2.35.4.jar": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
    "json-utils-2.35.4.jar": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
    "metrics-spi-2.35.4.jar": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
    "netty-nio-client-2.35.4.jar": "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
    "profiles-2.35.4.jar": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
    "protocol-core-2.35.4.jar": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
    "reactive-streams-1.0.4.jar": "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
    "regions-2.35.4.jar": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
    "retries-2.35.4.jar": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
    "retries-spi-2.35.4.jar": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
    "s3-2.35.4.jar": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
    "s3-transfer-manager-2.35.4.jar": "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
    "sdk-core-2.35.4.jar": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
    "sts-2.35.4.jar": "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
    "third-party-jackson-core-2.35.4.jar": "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
    "utils-2.35.4.jar": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
    "utils-lite-2.35.4.jar": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
}
_NOT_FOR_S3: Final = (
    *(each for each in CARRIED_BY_SPARK if each != "org.apache.hadoop:*"),
    "commons-codec:*",
    "io.netty:*",
    "org.apache.hadoop:hadoop-annotations",
    "org.apache.hadoop:hadoop-common",
    "org.apache.httpcomponents:*",
    "software.amazon.awssdk:bundle",
    "software.amazon.awssdk.crt:*",
)

_DEBEZIUM: Final = JarSet(
    name=DEBEZIUM,
    serves="Debezium",
    coordinates=(
        "io.debezium:debezium-embedded:3.5.0.Final",
        "io.debezium:debezium-storage-file:3.5.0.Final",
        "io.debezium:debezium-connector-mariadb:3.5.0.Final",
        "io.debezium:debezium-connector-mysql:3.5.0.Final",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    locked={
        "jackson-annotations-2.19.0.jar": "ead60e9cac0e42b57092b9e2d087ff43536e9477d4486ba393037a8cc156cda7",
        "jackson-core-2.19.0.jar": "da8e859bac94874528116a25f20c68560e4287acbf27628711b8a4f96b028430",
        "jackson-databind-2.19.0.jar": "ceda311f476c3b18e1d2b240c94e2dcb9c8d44e70f8afa9facab88bac4ddc03a",
        "jackson-datatype-jsr310-2.19.0.jar": "0ee97bf32936349d6a4cf6d8428533bf4a4b5b3e7e55fd9a4f19508ce062a775",
        "jackson-module-blackbird-2.19.0.jar": "9d038d1232aa7ab4927e5ac97e311e4483864e4c2cbba5de8a224dc09c28952d",
        "zstd-jni-1.5.6-10.jar": "b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df",
        "mysql-connector-j-9.1.0.jar": "8776e2ebc46072c9a47ea59d98298c4273bd9f16a7b26b5dfa4744535aa26c62",
        "debezium-api-3.5.0.Final.jar": "d1267b742b9a83b5c0c3e24d417f75c93dc5d4640d5fcee7d24390a0ddf96cb3",
        "debezium-config-3.5.0.Final.jar": "9430a5bb4dc9f6ee12015c3e3925f14a3e07906ccdf005a295be116ea5e0d5c8",
        "debezium-connect-plugins-3.5.0.Final.jar": "0c8579e75dbe0f4993a87fe8e85baa39b87170412348121dc67837740d080dbf",
        "debezium-connector-binlog-3.5.0.Final.jar": "802a269457f5ca2eadec2332ec778006dcae634ba8d0b6ee7364beac91fa2b12",
        "debezium-connector-common-3.5.0.Final.jar": "68b87943d99eb36c2c9639c132ff3528eed87e057d137df93e60d291db149dd4",
        "debezium-connector-mariadb-3.5.0.Final.jar": "6ea239f23d74486a77e89cceae11120f208e9f832ccdff9d88cb629ce298e890",  # noqa: E501
        "debezium-connector-mysql-3.5.0.Final.jar": "7948107f1efb5105e1fb56cd7b50a4077aaeb9724cf75f816b03e6d1d0a5ca15",
        "debezium-ddl-parser-3.5.0.Final.jar": "41dc0fb39cd0366cff67b02fa3e89ca83664d6748154737c18d2b2502a6a32b5",
        "debezium-embedded-3.5.0.Final.jar": "16df12ece70eea47e8b379eb23dc1c8031e12b2cc7a5ae66523edb5fbeba88d7",
        "debezium-openlineage-api-3.5.0.Final.jar": "ac6ec9bbcae42cb5bc05200f9f2c5268d591b6abadc2ec209df7cffdcdc5f5fe",
        "debezium-storage-file-3.5.0.Final.jar": "ffdacc74d296dda0ce37e5a67812e1ebdc56945bc23076a5d71949a6828d8ed7",
        "debezium-storage-kafka-3.5.0.Final.jar": "dc36614e975459a82192f81fb1b273845ba4e242a675d6322ceb6700d6f47801",
        "debezium-util-3.5.0.Final.jar": "ca5ba9a7f89b0a3f6f38ea37e88ac77fdc64b508a44ea5fc9b6a19cce22a7234",
        "mysql-binlog-connector-java-0.40.6.jar": "0bb2363f3632afa4bd84b38b1a9cf9c2918a9eff98c62943f679c8312ff58dcc",
        "antlr4-runtime-4.10.1.jar": "da66be0c98acfb29bc708300d05f1a3269c40f9984a4cb9251cf2ba1898d1334",
        "connect-api-4.1.1.jar": "9e8fe3277d31410e3dd6c84b34967230bb5643b8424d3b96320ce1c43b4b5152",
        "connect-file-4.1.1.jar": "9f7653f48fcc3e76690fa663f770c75a8f4efbb745c1e3d3e65611ff0ecbed67",
        "connect-json-4.1.1.jar": "bcfd54f2e5529461df2ed3698b6471e9e8924eb2f84b72b8b2581fc8e7ba6e17",
        "connect-runtime-4.1.1.jar": "01600f8b4e3a26016ba3f87e12f1fec7945673a9654ee7fb93b3591e47837ed6",
        "connect-transforms-4.1.1.jar": "419ccbd1bbd345e99c884d3d0f82f632a97b9e14a198c57a5890d0b8d05282ad",
        "kafka-clients-4.1.1.jar": "00247122a572c3d3ae4eb60a50192a5811bc0181f51923d13018600f892e821d",
        "maven-artifact-3.9.6.jar": "ad7a0fb408f8e47585ccc0d0011e0b501d93bfc9888d369bbd4a043d19475073",
        "mariadb-java-client-3.5.3.jar": "85c4ba2f221d0dfd439c26affbb294f784960763544263c65aba9c2c76858706",
        "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
        "slf4j-simple-1.7.36.jar": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
    },
    left_out=(
        "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
        "com.fasterxml.jackson.jakarta.rs:*",
        "com.google.protobuf:*",
        "com.fasterxml.jackson.module:jackson-module-jakarta-xmlbind-annotations",
        "com.sun.activation:*",
        "io.github.classgraph:*",
        "io.swagger.core.v3:*",
        "jakarta.activation:*",
        "jakarta.annotation:*",
        "jakarta.inject:*",
        "jakarta.servlet:*",
        "jakarta.validation:*",
        "jakarta.ws.rs:*",
        "jakarta.xml.bind:*",
        "javax.activation:*",
        "javax.xml.bind:*",
        "org.apache.commons:*",
        "org.bitbucket.b_c:*",
        "org.checkerframework:*",
        "org.codehaus.plexus:*",
        "org.eclipse.jetty.ee10:*",
        "org.eclipse.jetty:*",
        "org.glassfish.hk2:*",
        "org.glassfish.jersey.containers:*",
        "org.glassfish.jersey.core:*",
        "org.glassfish.jersey.inject:*",
        "org.javassist:*",
        "org.lz4:*",
        "org.xerial.snappy:*",
    ),
    apart=True,
)
"""Debezium's engine with its connectors to MariaDB and MySQL, for a process of its own.

3.5.0 is the newest version of which all parts are published. The packages that are left out serve Kafka Connect's web
server.
"""


def sets_of(release: str) -> dict[str, JarSet]:
    """Return a dict from names to the sets of jars for a release of Spark ("4.1"). A newer Spark may lack some sets.

    `delta` is for a session with Delta's own SQL. A tick does not need it, because delta-rs publishes its tables.
    `kafka` is Spark's connector, for a tick that reads a `KafkaSource`. `s3a` is Hadoop's reader of S3, for a tick
    whose warehouse lies there. Hadoop declares the whole AWS SDK, 686 MB in one jar, but uses only the parts that this
    set has, 13 MB.
    """
    found = []
    if release in _DELTA_OF_SPARK:
        artifact = f"delta-spark_{release}_2.13"
        own = {f"{artifact}-{_DELTA_RELEASE}.jar": _DELTA_OF_SPARK[release]}
        coordinate = f"io.delta:{artifact}:{_DELTA_RELEASE}"
        found.append(JarSet(name=DELTA, serves="Delta", coordinates=(coordinate,), locked=own | _DELTA_OF_ALL))
    if release in _KAFKA_OF_SPARK:
        connector, locked = _KAFKA_OF_SPARK[release]
        coordinate = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{connector}"
        found.append(JarSet(name=KAFKA, serves="Kafka", coordinates=(coordinate,), locked=locked))
    if release in _HADOOP_OF_SPARK:
        hadoop, locked = _HADOOP_OF_SPARK[release]
        sdk = (f"software.amazon.awssdk:{part}:2.35.4" for part in ("s3", "s3-transfer-manager", "sts"))
        coordinates = (f"org.apache.hadoop:hadoop-aws:{hadoop}", *sdk)
        jars = {**locked, **_AWS_SDK}
        found.append(JarSet(name=S3A, serves="S3", coordinates=coordinates, locked=jars, left_out=_NOT_FOR_S3))
    return {each.name: each for each in (*found, _DEBEZIUM)}


# ------------------------------------------------------------------
# The environment variables that Spark's own programs need to find this project's Python and Spark.


class EnvironmentIncompleteError(Exception):
    """A part of the locked environment is missing. The message names it, and the command to type."""


def spark_home() -> Path:
    """Return the folder of the installed pyspark. It is a whole Spark distribution.

    Raises EnvironmentIncompleteError if pyspark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentIncompleteError("pyspark is not installed in this Python: make env")
    return Path(spec.origin).parent


def spark_environment() -> dict[str, str]:
    """Return this process's environment with all that `spark-submit`, `spark-class` and Python workers need.

    It always sets both Python variables. Otherwise, if the virtual environment is not activated, Spark takes the
    machine's own Python, which lacks the packages.
    """
    return os.environ | {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def spark_release() -> str:
    """Return the first two numbers of the installed Spark's version, as in "4.1", or an empty text without pyspark."""
    try:
        return release_of(version("pyspark"))
    except PackageNotFoundError:
        return ""


def release_of(number: str) -> str:
    """Return the release to which a version of Spark belongs, such as "4.1" for "4.1.2"."""
    return ".".join(number.split(".")[:2])


JAR_SETS: Final = sets_of(spark_release())
"""From names to the sets of jars for the Spark that is installed here."""

JARS_VARIABLE = "TIDEMARK_JARS"


class JarsError(Exception):
    """The jars are missing, cannot be fetched, or are not the locked ones. The message says what to type."""


def jars_folder() -> Path:
    """Return the folder of the jars: TIDEMARK_JARS, or `.jars` of the checkout, or a folder in the Python environment.

    An installed Tidemark has no folder of its own, and the place where it is installed may not be writable.
    """
    named = os.environ.get(JARS_VARIABLE)
    above = Path(__file__).resolve().parents[2]
    if named:
        return Path(named)
    return (above if (above / "pyproject.toml").is_file() else Path(sys.prefix)) / ".jars"


def jar_set(name: str) -> JarSet:
    """Return the set of that name. Raise JarsError with all names if there is none for this Spark."""
    found = JAR_SETS.get(name)
    if found is None and name == DELTA:
        raise JarsError(
            f"Delta has no jars for Spark {spark_release()}, so this Spark cannot read Delta tables: read them with "
            f"Polars, Arrow or DuckDB, or use Spark {' or '.join(_DELTA_OF_SPARK)}"
        )
    if found is None:
        names = ", ".join(sorted(JAR_SETS))
        raise JarsError(f"there is no set of jars {name!r} for Spark {spark_release()}: the sets are {names}")
    return found


def delta_jars() -> tuple[Path, ...]:
    """Return the paths of all jars that a session with Delta needs; raise JarsError as `jars_of` and `jar_set` do."""
    return jars_of(jar_set(DELTA))


def jars_of(jars: JarSet) -> tuple[Path, ...]:
    """Return the absolute paths of all jars of a set.

    Raises JarsError with the first missing jar and the command that fetches it.
    """
    for path in _paths(jars):
        if not path.exists():
            raise JarsError(f"{path} is missing: fetch the {jars.serves} jars with '{fetch_command(jars)}'")
    return _paths(jars)


def fetch_command(jars: JarSet) -> str:
    """Return the command that fetches a set."""
    return f"{sys.executable} -m jobs.spark.jars" + ("" if jars.name == DELTA else f" {jars.name}")


def not_fetched(names: Iterable[str]) -> tuple[JarSet, ...]:
    """Return those of the named sets that lack a jar. Raise JarsError for a name that no set has."""
    return tuple(each for each in map(jar_set, names) if not all(path.exists() for path in _paths(each)))


def fetch(folder: Path, jars: JarSet) -> int:
    """Fetch the missing jars of a set into `folder`. Return how many were fetched.

    Spark's Ivy resolves them with the user's own Ivy settings (spark-defaults.conf, if there is one). Raises JarsError
    with Ivy's last output if it does not succeed.
    """
    return fetch_locked(folder, jars.locked, lambda ivy: _resolve(ivy, jars))


def fetch_locked(folder: Path, locked: Mapping[str, str], resolve: Callable[[Path], Mapping[str, Path]]) -> int:
    """Fetch those of these jars that are missing into `folder`, and check their SHA-256. Return how many were fetched.

    `resolve` puts jars into an empty folder, and returns a dict from their names to their paths. Each whole jar is then
    renamed into its place. Raises JarsError for a jar that `resolve` did not bring, or whose SHA-256 differs.
    """
    missing = [name for name in locked if not (folder / name).exists()]
    if not missing:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    ivy = Path(tempfile.mkdtemp(prefix=".ivy-", dir=folder))
    try:
        fetched = resolve(ivy)
        for name in missing:
            _checked(name, fetched, locked[name]).replace(folder / name)
    finally:
        shutil.rmtree(ivy, ignore_errors=True)
    return len(missing)


def _paths(jars: JarSet) -> tuple[Path, ...]:
    return tuple((jars_folder() / name).absolute() for name in jars.locked)


def _resolve(ivy: Path, jars: JarSet) -> dict[str, Path]:
    """Run spark-submit, which resolves the packages into `ivy`. Return a dict from names without the group to jars."""
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--packages", ",".join(jars.coordinates)),
        *(("--exclude-packages", ",".join(jars.left_out)) if jars.left_out else ()),
        *("--conf", f"spark.jars.ivy={ivy.absolute()}"),
        *("--class", "org.apache.hadoop.util.VersionInfo", "spark-internal"),  # the smallest main that Spark has
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=spark_environment())  # noqa: S603
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        what = ", ".join(jars.coordinates)
        raise JarsError(f"Ivy could not fetch {what}; is the network reachable? It said last:\n{words}")
    return {path.name.partition("_")[2]: path for path in (ivy / "jars").glob("*.jar")}


def _checked(name: str, fetched: Mapping[str, Path], sha256: str) -> Path:
    path = fetched.get(name)
    if path is None:
        raise JarsError(f"Ivy did not bring {name}, only {sorted(fetched)}: the locked jars and {__file__} disagree")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise JarsError(f"{name} has SHA-256 {found}, not the locked {sha256}: do not trust where it came from")
    return path


def main(names: list[str]) -> None:
    """Fetch the named sets, or Delta's set if none is named, and print how long that took.

    On failure, print the reason and exit with 1.
    """
    console = Console(stderr=True, markup=False, emoji=False)
    folder = jars_folder()
    try:
        for jars in map(jar_set, names or [DELTA]):
            started = time.monotonic()
            with console.status(f"fetching the {jars.serves} jars"):
                count = fetch(folder, jars)
            how = f"{count} fetched, {time.monotonic() - started:.0f} s" if count else "all there"
            told = f"{len(jars.locked)} {jars.serves} jars in {folder}: {how}"
            console.print(told, highlight=False, soft_wrap=True)
    except JarsError as error:
        sys.exit(f"tidemark: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
