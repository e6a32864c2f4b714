# tfasr with everything to train, report, export and serve, on the CPU:
#   docker build -t tfasr . && docker run --rm -v "$PWD/runs:/runs" tfasr demo --demo_dir /runs/demo
FROM python:3.11-slim AS build
WORKDIR /source
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++=4:* \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN python -m venv /opt/tfasr \
    && /opt/tfasr/bin/pip install --no-cache-dir '.[demo,export,serve]'

FROM python:3.11-slim
COPY --from=build /opt/tfasr /opt/tfasr
RUN useradd --uid 1000 --create-home tfasr && install --directory --owner=1000 /runs
USER 1000
WORKDIR /runs
ENV PATH=/opt/tfasr/bin:$PATH
ENTRYPOINT ["tfasr"]
CMD ["--help"]
