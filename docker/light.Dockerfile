# qtool without torch, which verifies, inspects, times, evaluates and gates files. From the root of
# the repository:
#
#   docker build -f docker/light.Dockerfile -t qtool-light .
#   docker run --rm -v "$PWD:/work" qtool-light verify model.int8.onnx
FROM python:3.11-slim

WORKDIR /opt/qtool
COPY constraints.txt pyproject.toml setup.py README.md LICENSE ./
COPY qtool qtool
COPY cli cli
RUN pip install --no-cache-dir -c constraints.txt .

ENV HOME=/tmp
USER 1000
WORKDIR /work
ENTRYPOINT ["qtool"]
CMD ["--help"]
