"""Names and modules are imported when they are first used."""

import subprocess
import sys

from bevel.lazy import LazyModule


def test_a_name_is_loaded_once_and_not_before_it_is_used():
    code = (
        "import sys, bevel.optimizers as o; assert 'optax' not in sys.modules;"
        "assert 'dp_adam' not in vars(o); first = o.dp_adam;"
        "assert 'optax' in sys.modules and vars(o)['dp_adam'] is first"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_lazy_module_is_the_module():
    import json

    lazy = LazyModule("json")
    assert lazy and lazy.dumps is json.dumps


def test_a_lazy_module_that_is_not_installed_is_false():
    assert not LazyModule("no_such_module")


def test_threads_may_load_names_at_the_same_time():
    code = (
        "import threading, bevel; failures = []; barrier = threading.Barrier(4)\n"
        "def load(name):\n"
        "    barrier.wait()\n"
        "    try: getattr(bevel, name)\n"
        "    except BaseException as error: failures.append(error)\n"
        "names = ['clipped_grad', 'report', 'sharding', 'noise_addition']\n"
        "threads = [threading.Thread(target=load, args=[name]) for name in names]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; assert not failures, failures"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
