"""PostgreSQL's JDBC driver, with which the peer of P24 writes."""

from typing import Final

from jobs.spark.jars import JarSet

JDBC: Final = JarSet(
    name="jdbc",
    serves="PostgreSQL JDBC",
    coordinates=("org.postgresql:postgresql:42.7.8",),
    left_out=("org.checkerframework:checker-qual",),
    locked={"postgresql-42.7.8.jar": "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7"},
)
