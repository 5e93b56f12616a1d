from flashnest import simulate as simulate
from flashnest.policy.compile import Policy as Policy
from flashnest.policy.compile import compile_policy as compile_policy
from flashnest.policy.diagnostics import PolicyCheckError as PolicyCheckError
from flashnest.policy.facts import RecordFacts as RecordFacts
from flashnest.policy.tiering_file import TieringFile as TieringFile
from flashnest.policy.tiering_file import load_tiering_file as load_tiering_file
from flashnest.simulate.load import load_trace as load_trace

__version__: str
