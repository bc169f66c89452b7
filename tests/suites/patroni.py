"""Two PostgreSQL nodes under Patroni, which keeps the primary's lock at three nodes on 2379, 12379 and 22379.

A switchover; a failover while the leader of the three is killed; then the primary is killed. All the time both are
asked whether they are primaries, and there are never two. NODES has the process ids of the three, by port.
`tests/suites/run` starts it, in an environment with Patroni.
"""
import base64
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import psycopg2

STORES = [2379, 12379, 22379]
WAIT = 240  # seconds until it is said what did not happen
CONFIGURATION = """
scope: suite
name: {name}
restapi: {{listen: '127.0.0.1:{rest}', connect_address: '127.0.0.1:{rest}'}}
etcd3: {{hosts: [{stores}]}}
bootstrap:
  dcs: {{ttl: 20, loop_wait: 1, retry_timeout: 5, maximum_lag_on_failover: 1048576}}
  initdb: [{{encoding: UTF8}}, data-checksums]
postgresql:
  listen: '127.0.0.1:{port}'
  connect_address: '127.0.0.1:{port}'
  data_dir: {folder}/data
  bin_dir: {programs}
  pgpass: {folder}/pgpass
  pg_hba: [local all all trust, host all all 127.0.0.1/32 trust, host replication all 127.0.0.1/32 trust]
  parameters: {{unix_socket_directories: '{folder}', fsync: 'off'}}
  authentication:
    superuser: {{username: postgres, password: of-postgres}}
    replication: {{username: copier, password: of-copier}}
"""


class Database:
    def __init__(self, name, number, folder):
        self.name, self.rest, self.port = name, 18008 + number, 15432 + number
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder, 0o700)
        as_user = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to be root.
            as_user = {'user': 'postgres', 'group': 'postgres', 'extra_groups': []}
            subprocess.check_call(['chown', 'postgres:', self.folder])
        self.file = os.path.join(self.folder, 'patroni.yml')
        programs = sorted(glob.glob('/usr/lib/postgresql/*/bin'))
        assert programs, 'install postgresql'
        with open(self.file, 'w') as file:
            file.write(CONFIGURATION.format(
                name=name, rest=self.rest, port=self.port, folder=self.folder, programs=programs[-1],
                stores=', '.join(f"'127.0.0.1:{port}'" for port in STORES)))
        self.log = open(os.path.join(self.folder, 'log'), 'w')
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'patroni', self.file], cwd=self.folder, stdout=self.log, stderr=self.log, **as_user)

    def state(self):
        """What Patroni says of its node: role, state, replication."""
        try:
            with urllib.request.urlopen(f'http://127.0.0.1:{self.rest}/patroni', timeout=5) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as answer:
            return json.load(answer)
        except (OSError, ValueError):
            return {}

    def is_primary(self):
        state = self.state()
        return state.get('role') == 'primary' and state.get('state') == 'running'

    def follows(self):
        state = self.state()
        return state.get('role') == 'replica' and state.get('replication_state') == 'streaming'

    def reign(self):
        """What a primary is known by as long as it does not stop being one; None at another."""
        try:
            with psycopg2.connect(host='127.0.0.1', port=self.port, user='postgres', dbname='postgres',
                                  password='of-postgres', connect_timeout=5) as connection:
                cursor = connection.cursor()
                cursor.execute('select pg_is_in_recovery(), pg_postmaster_start_time()')
                recovers, since = cursor.fetchone()
            connection.close()
            return None if recovers else str(since)
        except psycopg2.Error:
            return None

    def end(self, how):
        """Patroni and its PostgreSQL, whose processes end with the one that is in its file."""
        for process in self.processes():
            try:
                os.kill(process, how)
            except ProcessLookupError:
                pass
        self.process.wait()

    def processes(self):
        found = [self.process.pid]
        try:
            with open(os.path.join(self.folder, 'data', 'postmaster.pid')) as file:
                found.append(int(file.readline()))
        except (OSError, ValueError):
            pass
        return found


class Witness(threading.Thread):
    """Looks for two primaries at once: one that was a primary before and after the other was seen to be."""

    def __init__(self, one, other):
        super().__init__(daemon=True)
        self.one, self.other = one, other
        self.looks, self.primaries, self.seen, self.ended = 0, set(), [], threading.Event()

    def run(self):
        while not self.ended.wait(0.02):
            before, other, after = self.one.reign(), self.other.reign(), self.one.reign()
            self.looks += 1
            self.primaries |= {before, other} - {None}
            if before and other and before == after:
                self.seen.append((before, other))


def until(what, holds):
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > WAIT:
            raise SystemExit(f'after {WAIT} s it is not so: {what}')
        time.sleep(0.2)
    print(f'{what}: after {time.monotonic() - start:.1f} s', flush=True)


def ask(database, path, wanted):
    """Asks Patroni for a switchover or a failover; says what it answered."""
    request = urllib.request.Request(
        f'http://127.0.0.1:{database.rest}/{path}', json.dumps(wanted).encode(), {'Content-Type': 'application/json'})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return f'{answer.status} {answer.read().decode()}'
    except urllib.error.HTTPError as answer:
        return f'{answer.code} {answer.read().decode()}'
    except OSError as error:
        return str(error)


def call(port, path, wanted):
    request = urllib.request.Request(f'http://127.0.0.1:{port}/v3/{path}', json.dumps(wanted).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def leader():
    """The process id of the node that leads the three."""
    for port, process in zip(STORES, os.environ['NODES'].split()):
        status = call(port, 'maintenance/status', {})
        if status['leader'] == status['header']['member_id']:
            return int(process)
    raise SystemExit('none of the three leads')


def is_written():
    """Whether the wish for a failover is at the three; one that was fulfilled leaves an empty object."""
    key = base64.b64encode(b'/service/suite/failover').decode()
    values = [base64.b64decode(kv['value']) for kv in call(STORES[0], 'kv/range', {'key': key}).get('kvs', [])]
    return any(b'one' in value for value in values)


def scenes(one, other):
    until('the second follows', other.follows)

    print('switchover:', ask(one, 'switchover', {'leader': 'one', 'candidate': 'other'}), flush=True)
    until('the second is primary', other.is_primary)
    until('the first follows', one.follows)

    killed = leader()
    answers = []
    asked = threading.Thread(target=lambda: answers.append(ask(other, 'failover', {'candidate': 'one'})))
    asked.start()
    while asked.is_alive() and not is_written():
        time.sleep(0.01)
    os.kill(killed, signal.SIGKILL)
    asked.join()
    print('failover while the leader of the three is killed:', answers[0], flush=True)

    def moved():
        if one.is_primary():
            return True
        if other.is_primary() and one.follows():
            print('asked again:', ask(other, 'failover', {'candidate': 'one'}), flush=True)
        return False
    until('the first is primary again', moved)
    until('the second follows again', other.follows)

    one.end(signal.SIGKILL)
    until('the second takes over from a killed primary', other.is_primary)
    with psycopg2.connect(host='127.0.0.1', port=other.port, user='postgres', dbname='postgres',
                          password='of-postgres') as connection:
        connection.cursor().execute('create table written (at int)')


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        one = Database('one', 0, folder)
        other = None
        try:
            until('the first is primary', one.is_primary)
            other = Database('other', 1, folder)
            witness = Witness(one, other)
            witness.start()
            scenes(one, other)
            witness.ended.set()
            witness.join()
            print(f'{witness.looks} looks for two primaries, {len(witness.primaries)} seen alone', flush=True)
            assert len(witness.primaries) >= 4, 'a primary was overlooked'
            assert not witness.seen, f'two primaries: {witness.seen}'
        except BaseException:
            for database in [one, other]:
                if database:
                    with open(database.log.name) as log:
                        print(f'--- {database.name}', *log.readlines()[-60:], sep='\n', file=sys.stderr)
            raise
        finally:
            for database in [one, other]:
                if database and database.process.poll() is None:
                    database.end(signal.SIGTERM)
    print('patroni: passed')


main()
