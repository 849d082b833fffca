# Images from one file: `--target router` (no compute library in it), `router-vllm` (for stock vLLM servers), `worker` and
# `worker-gpu`.
# Everything is installed into /opt/baton in a build stage; the last stages get that directory and nothing else.

FROM python:3.11.14-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PATH=/opt/baton/bin:$PATH
# /run/baton is where a volume with the tokens goes that a service needs, /run/baton-tokens where those of all services
# go while they are made: a new volume takes over the owner of the directory.
RUN useradd --uid 1000 --create-home --home-dir /home/baton baton \
    && cd /run && install -d -o baton -g baton -m 0700 baton baton-tokens/router baton-tokens/worker baton-tokens/redis \
    && install -d -o baton -g baton /home/baton/.cache/huggingface

FROM base AS build-router
# pip's own settings, for whoever has an index of their own. They stay in the build stages.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# pip installs from outside: nothing that only an installation needs is in /opt/baton.
RUN python -m venv /opt/pip && python -m venv --without-pip /opt/baton
ENV PIP="/opt/pip/bin/pip --python /opt/baton/bin/python"
# COMPILE=1: the hot modules of the router are compiled (docs/hot-path.md), which takes a minute or two.
ARG COMPILE=1
RUN if [ "$COMPILE" = 1 ]; then \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi
WORKDIR /src
COPY deploy/constraints.txt deploy/constraints.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY baton_serve baton_serve
COPY core core
COPY router router
COPY workers workers
COPY baton baton
RUN BATON_COMPILE=$COMPILE $PIP install -c deploy/constraints.txt '.[router]'
COPY deploy/healthcheck.py /opt/baton/bin/healthcheck

# Here, and not below: the old builder makes every stage above the one that is asked for.
FROM base AS router
COPY --from=build-router /opt/baton /opt/baton
USER baton
WORKDIR /home/baton
ENV BATON_ROUTER_HOST=0.0.0.0 BATON_ROUTER_PORT=8000 BATON_ROUTER_INTERNAL_PORT=8001
EXPOSE 8000 8001
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "/opt/baton/bin/healthcheck", "8000"]
ENTRYPOINT ["baton"]
CMD ["router"]

# The router for stock vLLM servers: with the NIXL agent that renews their leases. nixl asks pip for torch, which a router
# does not use, so its packages are installed without what they ask for.
FROM build-router AS build-router-vllm
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
RUN $PIP install -c deploy/constraints.txt numpy \
    && $PIP install -c deploy/constraints.txt --no-deps nixl nixl-cu12

FROM router AS router-vllm
COPY --from=build-router-vllm /opt/baton /opt/baton

FROM build-router AS build-worker
# Again: an argument ends with its stage.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
# The CPU build by default; TORCH_INDEX_URL=https://pypi.org/simple brings the CUDA build of the same version.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY deploy/trim-packages.py deploy/trim-packages.py
# Of two builds of one version pip takes the one with a local version, +cpu, wherever it is. Baton itself is there already,
# compiled or not: only what a worker needs on top is installed.
RUN $PIP install -c deploy/constraints.txt --extra-index-url "$TORCH_INDEX_URL" torch==2.13.0 \
    && $PIP install -c deploy/constraints.txt 'baton-serve[worker]' \
    && /opt/baton/bin/python deploy/trim-packages.py \
    && install -d /opt/baton/models && cp -r baton/demo/model /opt/baton/models/baton-demo

FROM base AS worker
COPY --from=build-worker /opt/baton /opt/baton
USER baton
WORKDIR /home/baton
ENV BATON_WORKER_HOST=0.0.0.0 BATON_WORKER_PORT=8100 BATON_WORKER_INTERNAL_PORT=8101 \
    BATON_WORKER_MODEL=/opt/baton/models/baton-demo
EXPOSE 8100 8101
HEALTHCHECK --interval=5s --timeout=3s --start-period=600s --retries=3 \
    CMD ["python", "/opt/baton/bin/healthcheck", "8100"]
ENTRYPOINT ["baton"]
CMD ["worker"]

# The worker on GPUs: Triton compiles what starts a program of the GPU, for which it needs a C compiler.
FROM worker AS worker-gpu
USER root
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER baton
