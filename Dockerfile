# The command `tern` in an image: docker build -t tern .    docker run --rm tern info
# Podman and buildah build it as well. docs/containers.md says how ranks in containers find each other.
ARG BASE=debian:12
FROM ${BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive
WORKDIR /tern
COPY debian/control debian/
RUN apt-get update -q && apt-get install -y -q --no-install-recommends build-essential dpkg-dev && \
    apt-get build-dep -y -q --no-install-recommends ./
COPY . .
RUN dpkg-buildpackage -us -uc -b

FROM ${BASE}
COPY --from=build /tern_*.deb /libtern0.1_*.deb /packages/
RUN apt-get update -q && apt-get install -y -q --no-install-recommends libgloo0 libdnnl2 libdw1 \
    /packages/tern_*.deb /packages/libtern0.1_*.deb && rm -rf /packages /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["tern"]
