# Two images: `make image` (CPU, with the embedded engine) and `make image-cuda` (on a base that brings llama-server).
# The text was not built where it was written, for want of a container runtime; a test holds it against the tree.
ARG LLAMA_IMAGE=scratch

FROM python:3.11-slim AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY dflash_convert dflash_convert
COPY quant quant
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim AS cpu
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 dflash
COPY constraints.txt /tmp/
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /tmp/constraints.txt "$(ls /wheels/*.whl)[engine]"
USER dflash
WORKDIR /work
ENTRYPOINT ["dflash-convert"]
CMD ["--help"]

# LLAMA_IMAGE: one of llama.cpp's own server images for CUDA, or yours; llama-server lies in /app or on PATH there
FROM ${LLAMA_IMAGE} AS cuda
USER root
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home dflash
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    python3 -m venv /opt/dflash && /opt/dflash/bin/pip install --no-cache-dir /wheels/*.whl
ENV PATH=/opt/dflash/bin:/app:$PATH
USER dflash
WORKDIR /work
ENTRYPOINT ["dflash-convert"]
CMD ["--help"]
