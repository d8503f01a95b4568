# Tessera's image: Debian's Python, the locked libraries and the package, each a layer of its own, on nothing.
# The layers come from tools/image, which also makes the same image as an archive where there is no Docker
# (`make image`). No shell, no package manager, no compiler inside; no root.
#
#     docker build -t tessera:0.1.0 .

# The base by its digest (`docker buildx imagetools inspect debian:bookworm-slim` shows the latest). It only builds: nothing
# of it is in the image, whose packages apt fetches and checks.
FROM debian:bookworm-slim@sha256:7b140f374b289a7c2befc338f42ebe6441b7ea838a042bbd5acbfca6ec875818 AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-pip python3-venv \
 && python3 -m venv /venv
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY requirements/runtime.txt requirements/build.txt requirements/
COPY tools tools
COPY src src
RUN /venv/bin/python -m tools.image --folders /layers

FROM scratch
COPY --from=build /layers/system /
COPY --from=build /layers/libraries /
COPY --from=build /layers/program /
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tessera" \
      org.opencontainers.image.description="GPUs on Kubernetes, cut into slices: admission, devices and layouts" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/usr/local/bin:/usr/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/usr/local/bin/tessera"]
CMD ["--help"]
