"""Policies as nobody lays them out, and the one layout that `policy fmt` gives them."""

from __future__ import annotations

import re

from hypothesis import strategies as st
from moving import texts as moving_texts
from policies import policies

from flashnest.policy.layout_words import shape
from flashnest.policy.parse import parse
from flashnest.policy.syntax import Source

UNTIDY = """\


# heading
  param   long=32tokens   # a comment
param short = 8
class   popular = hits in 60s>=3 or refs >=64
>=32-token  records in DRAM ,<=8-token records on   NVMe   # prose


tokens==16 in DRAM else  NVMe, place tokens in 9 .. 12 on NVME after 2 hits in 10min   # two
  # about the rest
place "x" : \u226520-token records in Dram
place 'yy': namespace='acme' and not ( kind = chunk or bytes>= 4 KiB) on nvme
place otherwise    in dram else nvme    # 9 to 31 tokens
promote popular from nvme to dram      at   most 2000rec/s cooldown 30s
demote  not popular from dram to nvme  when fill>90 % until fill < 80% by idle desc at most 20MB/s # go
evict   from nvme   when fill > 95% until fill < 90% using S3FIFO warn
flush every 5min at most 20MB/s
require lookup p99<=150us
place (kind = chunk or   # why
  tokens >=16
    # alone

   )
  and not namespace = "batch"    in dram # so
     else NVMe
keep refs >= 1000 in dram
# end


"""
TIDY = """\
# heading
param long  = 32 tokens  # a comment
param short = 8
class popular = hits in 60s >= 3 or refs >= 64
>=32-token records in DRAM, <=8-token records on NVMe  # prose

place tokens = 16     in dram else nvme
place tokens in 9..12 on nvme            after 2 hits in 10min  # two
# about the rest
place   "x": tokens >= 20   in dram
place   "yy": namespace = "acme" and not (kind = chunk or bytes >= 4KiB) on nvme
place   otherwise           in dram else nvme  # 9 to 31 tokens
promote popular             from nvme to dram  at most 2000 rec/s cooldown 30s
demote  not popular         from dram to nvme  when fill > 90% until fill < 80% by idle desc at most 20 MB/s  # go
evict                       from nvme          when fill > 95% until fill < 90% using s3fifo warn
flush   every 5min          at most 20 MB/s
require lookup p99 <= 150us
place (kind = chunk or  # why
       tokens >= 16
       # alone
      )
      and not namespace = "batch" in dram  # so
      else nvme
keep refs >= 1000 in dram
# end
"""


def meaning(text: str) -> object:
    document, broken = parse(Source(text))
    assert not broken
    return shape(document.statements)


spaces = st.sampled_from((" ", " ", " ", "  ", "\t ", "   "))
breaks = st.sampled_from(("\n", "\n", "\n\n\n", " # why: (x, 'y\n", ", ", "  ,\n", '\n  # alone, "z\n', ",#,\n\n#\n"))
inner = st.sampled_from((" ", "\n", " # inside\n  ", "\n\n # inside\n"))


@st.composite
def untidy(draw: st.DrawFn) -> str:
    """Policies as nobody writes them: spaces, line ends, commas and comments wherever they may stand."""
    done = ""
    for statement in draw(moving_texts if draw(st.booleans()) else policies).split("\n"):
        parts = re.split(r" (?=and |or |else |when |by |at most |cooldown |from |to )", statement)
        whole = "".join(part + draw(inner) for part in parts[:-1]) + parts[-1]
        done += re.sub(" ", lambda _: draw(spaces), whole) + draw(breaks)
    return done
