"""What the growth of the tools is measured with: every command that reads a cluster, in every form.

A test keeps the table complete: a command, a form of `-o`, a choice or a flag that is in neither list fails `make test`.
"""

from dataclasses import dataclass
from typing import Final

PLACES: Final = (
    "all", "nodes", "pods", "manifests", "pod", "kubeconfig", "node", "waits", "layout", "devices"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A command line of `tessera`, with places for what depends on the cluster: `{all}`."""

    text: str

    @property
    def name(self) -> str:
        """As a person would type it."""
        shown = dict.fromkeys(PLACES, "FILE") | {
            "node": "NODE",
            "waits": "POD",
            "layout": "NAME",
            "devices": "N",
        }
        return self.text.format(**shown).replace(" --kubeconfig FILE", "").replace(" --since 87600h", "")

    def arguments(self, places: dict[str, str]) -> list[str]:
        """The arguments for one cluster."""
        return self.text.format(**places).split()


def _cases(*texts: str) -> tuple[Case, ...]:
    return tuple(map(Case, texts))


# {all}: a file with the whole cluster; {nodes}, {pods}: its parts; {manifests}: a pod for each node, as its owner wrote it; {pod}: one pod.
COMMANDS: Final = _cases(
    "capacity --from {all}",
    "capacity --from {all} -o wide",
    "capacity --from {all} -o csv",
    "capacity --from {all} -o name",
    "capacity --from {all} -o json",
    "capacity --from {all} -o yaml",
    "capacity --from {all} -o jsonpath={{.total}}",
    "capacity --from {all} --by namespace",
    "capacity --from {all} --pods",
    "capacity --from {all} --all --sort-by name --no-headers",
    "capacity --kubeconfig {kubeconfig}",
    "capacity --kubeconfig {kubeconfig} --watch",
    "admit --from {nodes} -f {pods} -o summary",
    "admit --kubeconfig {kubeconfig} -o summary",
    "admit --from {nodes} -f {manifests} -o patch",
    "admit --from {nodes} -f {manifests} -o yaml",
    "admit --from {nodes} -f {manifests} -o json",
    "admit --from {nodes} -f {manifests} -o jsonpath={{.kind}}",
    "admit --from {nodes} -f {pod} -o explain",
    "why {waits} -n team-0 --kubeconfig {kubeconfig}",
    "why {waits} -n team-0 --kubeconfig {kubeconfig} -o json",
    "why {waits} -n team-0 --kubeconfig {kubeconfig} -o yaml",
    "why {waits} -n team-0 --kubeconfig {kubeconfig} -o jsonpath={{.answer}}",
    "why --all-namespaces --kubeconfig {kubeconfig}",
    "why miglayout/{layout} --kubeconfig {kubeconfig}",
    "why miglayout/{layout} --kubeconfig {kubeconfig} -o json",
    "doctor --kubeconfig {kubeconfig}",
    "doctor --kubeconfig {kubeconfig} -o json",
    "doctor --kubeconfig {kubeconfig} -o yaml",
    "doctor --kubeconfig {kubeconfig} -o jsonpath={{..text}}",
    "doctor --kubeconfig {kubeconfig} --before-uninstall",
    "mig plan --since 87600h --from {all}",
    "mig plan --since 87600h --from {all} -o json",
    "mig plan --since 87600h --from {all} -o yaml",
    "mig plan --since 87600h --from {all} -o runai --objective memory",
    "mig plan --since 87600h --from {all} -o mig-parted",
    "mig plan --since 87600h --from {all} -o operator --leave-rest",
    "mig plan --since 87600h --from {all} -o jsonpath={{.cost}}",
    "mig defragment 7g.141gb={devices} --from {all}",
    "mig fit 1g.18gb={devices} --from {nodes} --keep",
    "mig show {all}",
    "mig show --cluster --kubeconfig {kubeconfig}",
    "mig validate {nodes}",
    "mig validate {nodes} -o json",
    "mig validate {nodes} -o yaml",
    "mig validate {nodes} -o jsonpath={{..outcome}}",
    "mig validate --cluster --kubeconfig {kubeconfig}",
    "mig convert --cluster {node} --to runai --kubeconfig {kubeconfig}",
    "mig convert --cluster {node} --to mig-parted --kubeconfig {kubeconfig}",
    "mig convert --cluster {node} --to counts --kubeconfig {kubeconfig}",
)

# Commands that are not in the table, and why.
ELSEWHERE: Final = {
    "webhook": "its view, memory and decisions are measured by `view`, `growth` and `storm`",
    "controller": "runs until it is ended: it is measured below the command (`SERVERS`)",
    "dashboard": "runs until it is ended: it is measured below the command (`SERVERS`)",
    "device-plugin": "reads one node",
    "dra-driver": "reads one node and its claims; measured by `dra`",
    "certs show": "reads one Secret and one webhook configuration",
    "certs rotate": "reads one Secret and one webhook configuration",
    "certs export": "reads one Secret",
    "certs run": "keeps one Secret and one webhook configuration",
    "mig apply": "asks for the nodes that it is given, once for the pods of each of them, and for what DRA has",
    "mig products": "reads no cluster",
    "demo": "has its own small cluster",
    "config check": "reads one file",
    "config example": "reads nothing",
    "config reference": "reads nothing",
    "config schema": "reads nothing",
    "completion": "reads nothing",
    "version": "reads nothing",
    "help": "reads nothing",
    "options": "reads nothing",
}

# Values of options that are not in the table, and why; by command and option.
OMITTED: Final = {
    ("capacity", "sort_by"): "all fields are sorted the same way; one is measured",
    ("capacity", "all_namespaces"): "says what holds without it",
    ("doctor", "wait"): "does the same again every two seconds",
    ("mig plan", "apply"): "asks for the nodes of the plan, and once for the pods of each of them",
    ("mig plan", "yes"): "says what holds with --apply",
    ("mig fit", "output"): "prints what `mig plan` prints; measured there",
    ("mig fit", "objective"): "asks the planner as `mig plan` does; measured there",
    ("mig fit", "leave_rest"): "asks the planner as `mig plan` does; measured there",
    ("mig defragment", "output"): "is a short document about the pods that must end",
}

# What is measured without the command line: `benchmarks.tool_process` has a function of that name.
SERVERS: Final = {
    "page": "dashboard: started, its state, a hundred mosaics and the metrics read",
    "page_changes": "dashboard: every twentieth node changes",
    "controller": "controller: started, until nothing is left to write",
    "plans": "controller: read from a file, and a hundred plans",
}
