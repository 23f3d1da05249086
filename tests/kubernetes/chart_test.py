"""The Helm chart beside the Kustomize manifests: Helm's own library renders deploy/helm/trireme, and both have to be the same objects.

The library is a wheel for x86-64 (helm-python-sdk); elsewhere these checks are skipped.
"""

import pathlib
import re
import tempfile

import yaml

try:
    import helm_python.chart as helm
except ImportError:
    helm = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "helm" / "trireme"

# Values by which the chart is an overlay of deploy/kubernetes.
DEMO = {stage: {"models": [model]} for stage, model in (("tokenizer", "tokenizer"), ("model", "minilm"), ("postprocess", "pooling"))}
SAME = {
    "base": {},
    "base+keda": {"keda": {"enabled": True, **DEMO}},
    "base+cluster": {"nats": {"cluster": True}},
    "base+python": {"python": {"enabled": True}},
    "base+python+cluster": {"python": {"enabled": True}, "nats": {"cluster": True}},
    "base+webhooks+otlp+downloads": {"networkPolicies": {"webhooks": True, "otlp": True, "downloads": True}},
}

# Lists whose order says nothing, and the field that names their elements.
UNORDERED = {"env": "name", "ports": "name", "volumes": "name", "volumeMounts": "mountPath"}

# Labels that the tools write themselves.
LABELS = {"app.kubernetes.io/managed-by", "app.kubernetes.io/part-of", "helm.sh/chart"}

# Fields of objects of the Prometheus operator, from its documentation.
MONITORS = {"selector", "endpoints", "podMetricsEndpoints", "groups"}


def render(values, chart=None):
    """The objects that the chart makes of these values, in the namespace `trireme`."""
    made = (chart or helm.Chart.load(FOLDER)).render(values, name="trireme", namespace="trireme")
    return [thing for name, text in made.items() if name.endswith(".yaml") for thing in yaml.safe_load_all(text) if thing]


def plain(thing):
    """An object without what only one of both tools writes: its namespace, labels of the chart, the hash in a ConfigMap's name."""
    thing = yaml.safe_load(re.sub(r"\btrireme-nats-[0-9a-z]{10}\b", "trireme-nats-HASH", yaml.safe_dump(thing)))
    metadata = thing["metadata"]
    metadata.pop("namespace", None)
    metadata.pop("annotations", None)
    # A Kustomize component does not get the labels of its base.
    for labelled in (metadata, thing.get("spec", {}).get("template", {}).get("metadata", {})):
        labels = labelled.pop("labels", {})
        labelled["labels"] = {name: value for name, value in labels.items() if name not in LABELS}
    for claim in thing.get("spec", {}).get("volumeClaimTemplates", []):
        claim["metadata"].pop("labels", None)
    return ordered(thing)


def ordered(value):
    """A value in which lists of named elements are sorted by the names."""
    if isinstance(value, dict):
        return {
            field: sorted(map(ordered, inner), key=lambda element, name=UNORDERED[field]: element[name])
            if field in UNORDERED and isinstance(inner, list) and all(UNORDERED[field] in element for element in inner)
            else ordered(inner)
            for field, inner in value.items()
        }
    return [ordered(element) for element in value] if isinstance(value, list) else value


def by_name(objects):
    """Objects by kind and name, without the namespace, which Helm does not make."""
    things = [plain(thing) for thing in objects if thing["kind"] != "Namespace"]
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in things}


def differences(left, right, path=""):
    """Where two values differ, as texts."""
    if isinstance(left, dict) and isinstance(right, dict):
        for field in sorted({*left, *right}):
            yield from differences(left.get(field), right.get(field), f"{path}.{field}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, pair in enumerate(zip(left, right)):
            yield from differences(*pair, f"{path}[{number}]")
    elif left != right:
        yield f"{path}: Kustomize has {left!r}, the chart has {right!r}"


def service(objects, name):
    """The pod of a Deployment, and its container's variables."""
    pod = next(thing for thing in objects if (thing["kind"], thing["metadata"]["name"]) == ("Deployment", name))["spec"]["template"]["spec"]
    return pod, {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in pod["containers"][0]["env"]}


def refused(values):
    """The error of values that the chart does not take; empty if it takes them."""
    try:
        chart = helm.Chart.load(FOLDER)
        chart.validate_schema(values)
        render(values, chart)
    except Exception as error:  # noqa: BLE001 the library has a class for each cause
        return str(error)
    return ""


def check_values(check):
    """What values change."""
    broker = {"create": False, "url": "tls://broker:4222", "peers": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "secrets": {"model": "mine"}}
    env = {"TRIREME_LOG_LEVEL": "debug", "TRIREME_NATS_USER": "other", "TRIREME_CANARY_SECS": None}
    token = {"TRIREME_HF_TOKEN": {"name": "hub", "key": "token"}}
    objects = render({
        "nats": broker, "model": {"env": env, "secretEnv": token, "pod": {"nodeSelector": {"gpu": "yes"}}, "resources": {"limits": {"memory": "9Gi"}}},
        "images": {"registry": "registry.example/team/", "tag": "1.2.3", "pullSecrets": ["pull"]}, "deployment": "staging",
    })
    names = {(thing["kind"], thing["metadata"]["name"]) for thing in objects}
    check(not {name for name in names if name[1].startswith("nats")}, f"chart: an existing broker, and {sorted(names)}")
    pod, variables = service(objects, "model")
    expected = {"TRIREME_NATS_URL": "tls://broker:4222", "TRIREME_LOG_LEVEL": "debug", "TRIREME_NATS_USER": "other", "TRIREME_DEPLOYMENT": "staging"}
    check(expected.items() <= variables.items() and "TRIREME_CANARY_SECS" not in variables, f"chart: the model's variables are {variables}")
    check(variables["TRIREME_HF_TOKEN"] == {"secretKeyRef": token["TRIREME_HF_TOKEN"]}, f"chart: {variables['TRIREME_HF_TOKEN']}")
    check(pod["nodeSelector"] == {"gpu": "yes"} and pod["imagePullSecrets"] == [{"name": "pull"}], f"chart: the model's pod is {pod}")
    container = pod["containers"][0]
    check(container["image"] == "registry.example/team/trireme-model:1.2.3", f"chart: the model's image is {container['image']}")
    check(container["resources"] == {"limits": {"memory": "9Gi"}}, f"chart: resources {container['resources']}")
    check({"secret": {"secretName": "mine", "defaultMode": 0o440}, "name": "password"} in pod["volumes"], f"chart: volumes {pod['volumes']}")
    egress = next(t for t in objects if t["metadata"]["name"] == "services-to-nats")["spec"]["egress"]
    check(egress == [{"to": broker["peers"]}], f"chart: services may connect to {egress}")

    objects = render({"models": {"url": "hf://org/name"}, "networkPolicies": {"downloads": True}})
    pod, variables = service(objects, "model")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    check(variables["TRIREME_MODEL_REPOSITORY"] == "hf://org/name" and "models" not in volumes and "emptyDir" in volumes["cache"], f"chart: a URL, and {pod}")
    check("PersistentVolumeClaim" not in {thing["kind"] for thing in objects}, "chart: a URL, and a claim for models")

    odd = render({"keda": {"enabled": True, "model": {"models": ["bge-small-en-v1.5/2"], "seconds": 0.5}}, "deployment": "staging"})
    triggers = next(thing for thing in odd if thing["kind"] == "ScaledObject")["spec"]["triggers"]
    streams = [trigger["metadata"].get("stream") for trigger in triggers]
    expected = ["trireme-staging_work_bge-small-en-v1=2E5_2", "trireme-staging_work_bge-small-en-v1=2E5_2-10000", None, None, None]
    check(streams == expected, f"chart: streams {streams}, expected {expected}")
    asked = [trigger["metadata"] for trigger in triggers[2:]]
    check(all('model="bge-small-en-v1.5"' in metadata["query"] for metadata in asked), f"chart: {asked}")
    thresholds = [metadata["threshold"] for metadata in asked]
    check(thresholds == ["1000000", "0.5", "30"], f"chart: the thresholds at Prometheus are {thresholds}")

    objects = render({"monitoring": {"monitors": True, "rules": True, "dashboard": True, "labels": {"release": "prometheus"}}})
    ports = {(t["kind"], t["metadata"]["name"]): {port["name"] for port in t["spec"]["ports"]} for t in objects if t["kind"] == "Service"}
    for thing in objects:
        if thing["apiVersion"] == "monitoring.coreos.com/v1":
            check(set(thing["spec"]) <= MONITORS and thing["metadata"]["labels"]["release"] == "prometheus", f"chart: {thing['kind']} {thing}")
    kinds = {thing["kind"]: thing for thing in objects}
    monitor, rules = kinds["ServiceMonitor"]["spec"], kinds["PrometheusRule"]["spec"]
    chosen = [t for t in objects if t["kind"] == "Service" and monitor["selector"]["matchLabels"].items() <= t["metadata"]["labels"].items()]
    check([t["metadata"]["name"] for t in chosen] == ["gateway"], f"chart: the ServiceMonitor chooses {chosen}")
    check(monitor["endpoints"][0]["port"] in ports["Service", "gateway"], f"chart: the ServiceMonitor names port {monitor['endpoints']}")
    check(rules == yaml.safe_load((ROOT / "deploy" / "observability" / "rules.yml").read_text()), "chart: other alerts than deploy/observability")

    for values, word in (
        ({"nats": {"create": False}}, "nats.url"),
        ({"nats": {"create": False, "url": "nats://there:4222"}}, "nats.peers"),
        ({"model": {"replica": 3}}, "replica"),
        ({"models": {"storage": "5 GB"}}, "storage"),
        ({"service": {"type": "Ingress"}}, "type"),
    ):
        check(word in refused(values), f"chart: {values} has to be refused with the word {word}, found {refused(values)!r}")


def check_chart(kustomize, check_objects, check):
    """Checks the chart; `kustomize(overlay)` are the objects that it is compared with, `check_objects(overlay, objects)` checks rendered ones."""
    if helm is None:
        print("==> skipped: the chart, because Helm's library has no wheel for this machine")
        return
    chart = helm.Chart.load(FOLDER)
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    found = {chart.version, chart.metadata["appVersion"]}
    check(found == {version}, f"chart: version {found}, Cargo.toml has {version}")
    for message in helm.lint(str(FOLDER), strict=True)["messages"]:
        check(message["severity"] < 2, f"chart: {message}")
    for overlay, values in SAME.items():
        chart.validate_schema(values)
        wanted, made = by_name(kustomize(overlay)), by_name(render(values))
        for fault in differences(wanted, made):
            # An upgrade of a release would set the replicas that the scaler has chosen back.
            scaled = "keda" in overlay and fault.endswith("the chart has None") and ".spec.replicas: " in fault
            check(scaled, f"chart as {overlay}: {fault}")
        print(f"==> deploy/helm/trireme as {overlay}: {len(made)} objects are those of Kustomize")
    check_objects("base+python+cluster", render(SAME["base+python+cluster"]))
    check_values(check)
    with tempfile.TemporaryDirectory() as folder:
        packed = helm.Chart.load(chart.save(folder))
        check(render({}, packed) == render({}), "chart: the archive makes other objects than the folder")
