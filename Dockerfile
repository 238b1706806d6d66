# The command `tern` in an image: ./run image, or docker build -t tern .    Then docker run --rm tern info
# docs/containers.md says how ranks in containers find each other.
#
# With --build-arg CUDA=13.0 it has the plugin for NVIDIA's GPUs: their compiler and libraries come from their wheels on PyPI, since
# Debian's main section has none.
ARG BASE=debian:12

FROM ${BASE} AS toolkit
ARG CUDA=
ENV DEBIAN_FRONTEND=noninteractive
# /runtime gets what programs need, without the compiler.
RUN mkdir -p /opt/nvidia /runtime && if [ -n "$CUDA" ]; then \
    apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip && \
    python3 -m pip install --no-cache-dir --no-deps --target /opt nvidia-cuda-nvcc==$CUDA.* nvidia-nvvm==$CUDA.* nvidia-cuda-crt==$CUDA.* \
        nvidia-cuda-cccl==$CUDA.* nvidia-cuda-runtime==$CUDA.* nvidia-cuda-nvrtc==$CUDA.* nvidia-cublas==13.1.* \
        nvidia-cudnn-cu13==9.19.* nvidia-nccl-cu13==2.28.* && \
    rm -f /opt/nvidia/*/lib/*.a && for lib in /opt/nvidia/*/lib; do mkdir -p "/runtime$lib" && cp -a "$lib/." "/runtime$lib/"; done; fi

FROM ${BASE} AS build
ARG CUDA=
ENV DEBIAN_FRONTEND=noninteractive
WORKDIR /tern
COPY debian/control debian/
RUN apt-get update -q && apt-get install -y -q --no-install-recommends build-essential dpkg-dev && \
    apt-get build-dep -y -q --no-install-recommends ./
COPY --from=toolkit /opt/nvidia /opt/nvidia
COPY . .
RUN if [ -n "$CUDA" ]; then export DEB_TERN_CUDA=enabled CUDA_HOME=/opt/nvidia/cu13 \
    CPATH=/opt/nvidia/cudnn/include:/opt/nvidia/nccl/include; fi; dpkg-buildpackage -us -uc -b

FROM ${BASE}
COPY --from=build /tern_*.deb /libtern0.1_*.deb /packages/
RUN apt-get update -q && apt-get install -y -q --no-install-recommends libgloo0 libdw1 \
    /packages/tern_*.deb /packages/libtern0.1_*.deb && rm -rf /packages /var/lib/apt/lists/*
COPY --from=toolkit /runtime/ /
# cuDNN and NCCL are loaded by name. The last two are for NVIDIA's container toolkit (docker run --gpus all).
ENV LD_LIBRARY_PATH=/opt/nvidia/cu13/lib:/opt/nvidia/cudnn/lib:/opt/nvidia/nccl/lib \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
ENTRYPOINT ["tern"]
