# int8cal as a command, for docker, podman and buildah (docs/how-to/containers.md):
#
#   docker build -t int8cal .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" int8cal calibrate model.onnx --data calib
#
# PYTHON is an image with Python 3.11 or newer and its venv; EXTRAS are those of pyproject.toml, such as [openvino,metrics].
ARG PYTHON=docker.io/library/python:3.12-slim-bookworm

FROM ${PYTHON} AS build
ARG EXTRAS=
COPY pyproject.toml README.md LICENSE /source/
COPY int8cal /source/int8cal
COPY sample_data /source/sample_data
RUN python3 -m venv /opt/int8cal && /opt/int8cal/bin/pip install --no-cache-dir "/source${EXTRAS}"
# Loops are compiled here, for any CPU of this architecture, so that no container does it again. The directory is open to every
# user: numba reads a cache only where it may write.
ENV NUMBA_CACHE_DIR=/opt/int8cal/loops NUMBA_CPU_NAME=generic
RUN /opt/int8cal/bin/python -c "import sys; from int8cal.numerics import compiled; compiled.PATIENCE_S = 0.0; from int8cal.cli.main import main; sys.exit(main())" calibrate /source/sample_data/model.onnx --data /source/sample_data/calib --recipe accurate --no-latency -o /tmp/sample && chmod -R a+rwX /opt/int8cal/loops

FROM ${PYTHON}
COPY --from=build /opt/int8cal /opt/int8cal
RUN useradd --uid 1000 --create-home int8cal
ENV PATH=/opt/int8cal/bin:$PATH NUMBA_CACHE_DIR=/opt/int8cal/loops NUMBA_CPU_NAME=generic
USER int8cal
WORKDIR /work
ENTRYPOINT ["int8cal"]
CMD ["--help"]
