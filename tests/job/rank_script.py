#!/usr/bin/env python3
"""A script of the kind that torchrun starts: it knows nothing of this project, only RANK and WORLD_SIZE; with --meet
also MASTER_ADDR and MASTER_PORT, where rank 0 listens as PyTorch's env:// store does."""
import os
import socket
import sys
import time

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
data = range(rank, 100, world_size)  # this rank's share
total = sum(data)
if "--meet" in sys.argv:
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(address) as server:
            server.settimeout(30)
            for _ in range(world_size - 1):
                with server.accept()[0] as peer:
                    total += int(peer.makefile().readline())
    else:
        for attempt in range(300):  # rank 0 may not listen yet
            try:
                with socket.create_connection(address, timeout=30) as peer:
                    peer.sendall(b"%d\n" % total)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        else:
            sys.exit("rank 0 never listened at %s:%d" % address)
print("rank %d of %d: %d" % (rank, world_size, total))
