"""Ports for programs that tests start. Not the system's choice (port 0): what it gives is of the range of outgoing connections, and by the time
the program listens there, any connection of the machine may have taken it (seen in CI's own run: "Address in use")."""
import random, socket

_given = set()
_random = random.Random()  # of the system's entropy: two runs side by side draw different ones


def _first_outgoing():
    try:
        with open('/proc/sys/net/ipv4/ip_local_port_range') as f:
            return int(f.read().split()[0])
    except (OSError, ValueError):
        return 32768


def _is_free(port):
    with socket.socket() as s:
        try:
            s.bind(('127.0.0.1', port))
        except OSError:
            return False
    return True


def free_ports(count):
    """Ports below those of outgoing connections that nobody listens on now; each is given once a process."""
    low, high = 10000, max(_first_outgoing(), 12000)  # a machine that goes out from everywhere has no such ports: the chance is small
    ports = []
    for _ in range(1000 * count):
        port = _random.randrange(low, high)
        if port not in _given and _is_free(port):
            _given.add(port)
            ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError(f'no free port of {low} to {high - 1}')


def free_port():
    return free_ports(1)[0]
