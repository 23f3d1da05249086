# Images of Trireme, one target each: gateway, tokenizer, model, postprocess, python; trireme (all in one process); model-gpu;
# export (the same with PyTorch, for model folders without an ONNX file); setup (which docker-compose.yml runs first). Builds with BuildKit and with the classic builder, which runs every stage
# above the target, needed or not: large stages that are seldom needed are at the end.
#
#     docker build --target gateway -t trireme-gateway .

# Any image with cargo, rustc and a C compiler; its C library must not be newer than the runtime image's.
ARG RUST_IMAGE=rust:1-bookworm
# The image in which programs run. They use only its glibc, libgcc and libstdc++.
ARG RUNTIME_IMAGE=debian:bookworm-slim
# Fetches prebuilt files with pip; no other file of it gets into an image.
ARG PYTHON_IMAGE=python:3.11-bookworm
# The interpreter for model.py files; its C library must not be older than the build image's.
ARG MODELS_PYTHON_IMAGE=python:3.11-slim-bookworm

# The workspace with empty sources: it changes only when a dependency does, so that the build of dependencies stays cached.
FROM ${RUNTIME_IMAGE} AS manifests
WORKDIR /src
COPY . .
RUN find . -type f ! -name Cargo.toml ! -name Cargo.lock ! -name build.rs ! -path '*/src/main.rs' ! -path '*/src/lib.rs' -delete \
    && find . -depth -type d -empty -delete \
    && find . -name lib.rs -exec cp /dev/null {} ';' \
    && find . -name '*.rs' ! -name lib.rs -exec sh -c 'echo "fn main() { }" >"$1"' _ {} ';'

FROM ${RUST_IMAGE} AS build
WORKDIR /src
# `unoptimized` builds in a fraction of the time.
ARG CARGO_PROFILE=release
ENV CARGO_INCREMENTAL=0
ENV PROGRAMS="trireme trireme-gateway trireme-tokenizer trireme-model trireme-postprocess trireme-python"
COPY --from=manifests /src .
# With cargo-auditable in the image of Rust, programs contain the list of their crates, which scanners of images read (trivy,
# grype, syft, cargo audit bin).
RUN cargo $(if command -v cargo-auditable >/dev/null; then echo auditable; fi) \
        build --locked --bins --profile ${CARGO_PROFILE} $(printf -- '--package %s ' ${PROGRAMS})
COPY . .
# Cargo compares times of change, and the empty sources' is later than the real ones'. target is left out: dependencies whose
# build scripts wrote sources there would be compiled again.
RUN find . -path ./target -prune -o -name '*.rs' -exec touch {} + \
    && cargo $(if command -v cargo-auditable >/dev/null; then echo auditable; fi) \
        build --locked --bins --profile ${CARGO_PROFILE} $(printf -- '--package %s ' ${PROGRAMS}) \
    && mkdir /out \
    && for program in ${PROGRAMS}; do \
           install --strip --mode 755 target/*/$program /out/ || exit 1; \
       done

# The base of all of Trireme's images: the C library, a user without rights, and the models' place.
FROM ${RUNTIME_IMAGE} AS runtime
ARG VERSION=unreleased
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Trireme" org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}" org.opencontainers.image.source="${SOURCE}"
RUN mkdir /models
USER 65532:65532
WORKDIR /
ENV TRIREME_MODEL_REPOSITORY=/models TRIREME_ADMIN_ADDRESS=0.0.0.0:8081 TRIREME_LOG_FORMAT=json
EXPOSE 8081

FROM runtime AS gateway
COPY --from=build /out/trireme-gateway /usr/local/bin/
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD ["trireme-gateway", "--healthcheck"]
ENTRYPOINT ["trireme-gateway"]

FROM runtime AS tokenizer
COPY --from=build /out/trireme-tokenizer /usr/local/bin/
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD ["trireme-tokenizer", "--healthcheck"]
ENTRYPOINT ["trireme-tokenizer"]

FROM runtime AS postprocess
COPY --from=build /out/trireme-postprocess /usr/local/bin/
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD ["trireme-postprocess", "--healthcheck"]
ENTRYPOINT ["trireme-postprocess"]

FROM ${PYTHON_IMAGE} AS onnxruntime
WORKDIR /src
COPY scripts scripts
RUN scripts/fetch-onnxruntime.sh

# Services that execute models keep costs and optimized graphs in /cache, if a volume is mounted there.
FROM runtime AS executor
USER root
RUN install --directory --owner 65532 --group 65532 /cache
USER 65532:65532
ENV ORT_DYLIB_PATH=/opt/onnxruntime/libonnxruntime.so XDG_CACHE_HOME=/cache

FROM executor AS model
COPY --from=onnxruntime /src/.tools/onnxruntime /opt/onnxruntime
COPY --from=build /out/trireme-model /usr/local/bin/
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s CMD ["trireme-model", "--healthcheck"]
ENTRYPOINT ["trireme-model"]

FROM executor AS trireme
COPY --from=onnxruntime /src/.tools/onnxruntime /opt/onnxruntime
COPY --from=build /out/trireme /usr/local/bin/
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s CMD ["trireme", "serve", "--healthcheck"]
ENTRYPOINT ["trireme"]
CMD ["serve"]

FROM ${PYTHON_IMAGE} AS fetched-demo-repository
WORKDIR /src
COPY scripts scripts
COPY examples/demo examples/demo
RUN scripts/fetch-demo-model.sh && cp -RL .tools/demo-repository /demo

# Runs once before the services of docker-compose.yml: passwords for NATS, the demo's models.
FROM ${RUNTIME_IMAGE} AS setup
COPY --from=fetched-demo-repository /demo /demo
COPY deploy/setup.sh /usr/local/bin/setup
CMD ["setup"]

FROM ${PYTHON_IMAGE} AS onnxruntime-cuda
WORKDIR /src
COPY scripts scripts
RUN scripts/fetch-onnxruntime-cuda.sh

# The driver comes with the host: NVIDIA's container toolkit mounts libcuda.so.1.
FROM executor AS model-gpu
COPY --from=onnxruntime-cuda /src/.tools/onnxruntime-cuda /opt/onnxruntime
COPY --from=build /out/trireme-model /usr/local/bin/
ENV LD_LIBRARY_PATH=/opt/onnxruntime NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s CMD ["trireme-model", "--healthcheck"]
ENTRYPOINT ["trireme-model"]

# An interpreter with numpy. Other packages come from an image on top of this one, or from the models' EXECUTION_ENV_PATH.
FROM ${MODELS_PYTHON_IMAGE} AS python
ARG VERSION=unreleased
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Trireme" org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}" org.opencontainers.image.source="${SOURCE}"
RUN pip install --no-cache-dir numpy
COPY --from=build /out/trireme-python /usr/local/bin/
USER 65532:65532
WORKDIR /
ENV TRIREME_MODEL_REPOSITORY=/models TRIREME_ADMIN_ADDRESS=0.0.0.0:8081 TRIREME_LOG_FORMAT=json
EXPOSE 8081
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s CMD ["trireme-python", "--healthcheck"]
ENTRYPOINT ["trireme-python"]

# `trireme` with a Python that `serve --export` and `trireme verify` use. PyTorch for CPUs is a gigabyte; from the package index alone
# (TORCH_INDEX empty) it comes with CUDA's libraries and is five.
FROM ${MODELS_PYTHON_IMAGE} AS export
ARG VERSION=unreleased
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Trireme" org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}" org.opencontainers.image.source="${SOURCE}"
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY cli/pyproject.toml /tmp/pyproject.toml
RUN python3 -c 'import tomllib; print(*tomllib.load(open("/tmp/pyproject.toml", "rb"))["project"]["optional-dependencies"]["export"], sep="\n")' >/tmp/export.txt \
    && PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}} --requirement /tmp/export.txt \
    && rm /tmp/pyproject.toml /tmp/export.txt \
    && mkdir /models \
    && install --directory --owner 65532 --group 65532 /cache
COPY --from=onnxruntime /src/.tools/onnxruntime /opt/onnxruntime
COPY --from=build /out/trireme /usr/local/bin/
USER 65532:65532
WORKDIR /
ENV TRIREME_MODEL_REPOSITORY=/models TRIREME_ADMIN_ADDRESS=0.0.0.0:8081 TRIREME_LOG_FORMAT=json
ENV ORT_DYLIB_PATH=/opt/onnxruntime/libonnxruntime.so XDG_CACHE_HOME=/cache
EXPOSE 8000 8001 8002 8081
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s CMD ["trireme", "serve", "--healthcheck"]
ENTRYPOINT ["trireme"]
CMD ["serve"]
