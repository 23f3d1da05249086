#!/usr/bin/env python3
"""`make kubernetes-test`: renders deploy/kubernetes and checks the objects.

Checks every object against Kubernetes' published schema (strictly: an unknown field is an error), KEDA's objects against
its documentation, and that names match: selectors, ports, volumes, secrets, queues, and environment variables against
docs/configuration.md; that Prometheus finds every service's metrics; that the brokers of a cluster know one another, and
services know all of them. Simulates each ScaledObject under few requests (scaling.py). Compares the Helm chart with them (chart_test.py).
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import chart_test
import kubernetes_validate
import scaling
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.32"
# The end of the name of a stream with bulk requests.
BULK = "-10000"
FAULTS = []
# Metrics that triggers ask for.
METRICS = set()


def check(holds, text):
    """Notes a fault."""
    if not holds:
        FAULTS.append(text)


def render(overlay):
    """The objects of an overlay, or None if there is no tool to render it. BASE+COMPONENT stands for a user's own overlay:
    a base with a component."""
    with tempfile.TemporaryDirectory() as made:
        folder, *components = [FOLDER / part for part in overlay.split("+")]
        if components:
            listed = {"resources": [folder], "components": components}
            listed = {field: [os.path.relpath(path, os.path.realpath(made)) for path in paths] for field, paths in listed.items()}
            (pathlib.Path(made) / "kustomization.yaml").write_text(yaml.safe_dump({"namespace": "trireme", **listed}))
            folder = made
        return render_folder(overlay, folder)


def render_folder(overlay, folder):
    """The objects that a folder describes."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, folder], text=True, capture_output=True, check=False)
            if done.returncode != 0:
                sys.exit(f"{overlay} cannot be rendered: {done.stderr}")
            return [document for document in yaml.safe_load_all(done.stdout) if document]
    return None


def secrets():
    """The objects that secrets.sh prints."""
    return list(yaml.safe_load_all(subprocess.run([FOLDER / "secrets.sh"], text=True, capture_output=True, check=True).stdout))


def matches(selector, labels):
    """Whether a label selector chooses an object with these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", []))


def queues_of(models):
    """The streams of models' queues: for live requests, and for bulk requests."""
    return {f"trireme_work_{model}_1{lane}" for model in models for lane in ("", BULK)}


def check_scaled_object(thing, workloads, queues):
    """A KEDA ScaledObject for a queue of NATS."""
    where, spec = f"ScaledObject {thing['metadata']['name']}", thing["spec"]
    known = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "triggers"}
    check(set(spec) <= known, f"{where}: unknown fields {set(spec) - known}")
    check(spec["scaleTargetRef"]["name"] in workloads, f"{where}: there is no such Deployment")
    check(spec["minReplicaCount"] == 0 < spec["maxReplicaCount"], f"{where}: scales to none")
    usage = [trigger["metadata"] for trigger in spec["triggers"] if trigger["type"] == "prometheus"]
    lags = [trigger for trigger in spec["triggers"] if trigger["type"] != "prometheus"]
    for trigger in lags:
        check(trigger["type"] == "nats-jetstream", f"{where}: trigger {trigger['type']}")
        metadata = trigger["metadata"]
        needed = {"natsServerMonitoringEndpoint", "account", "stream", "consumer", "lagThreshold", "activationLagThreshold"}
        check(set(metadata) == needed, f"{where}: {set(metadata) ^ needed}")
        check(all(isinstance(value, str) for value in metadata.values()), f"{where}: metadata are texts")
        check(metadata["stream"] in queues, f"{where}: no queue {metadata['stream']}, the demo has {sorted(queues)}")
        check(metadata["natsServerMonitoringEndpoint"].startswith("nats.trireme."), f"{where}: another broker")
    streams = {trigger["metadata"]["stream"] for trigger in lags}
    used = {f"trireme_work_{scaling.model_of(metadata)}_1" for metadata in usage}
    lanes = {metadata["query"]: scaling.lane_of(metadata) for metadata in usage if scaling.lane_of(metadata)}
    check(sorted(lanes.values()) == ["bulk", "live"] * len(used), f"{where}: asks for the waiting work of {lanes}")
    check(used == {stream for stream in streams if not stream.endswith(BULK)}, f"{where}: asks Prometheus about {sorted(used)}")
    METRICS.update(scaling.metric_of(metadata) for metadata in usage)
    FAULTS.extend(f"{where}: {fault}" for fault in scaling.faults(spec))
    for stream in streams:
        # Bulk requests, which jobs send, wait in a stream of their own.
        check(stream.endswith(BULK) or stream + BULK in streams, f"{where}: jobs do not wake {stream}")


def check_pod(where, template, have, variables, claims):
    """A pod's references: volumes, secrets, ports, environment variables; and that it runs without privileges."""
    spec = template["spec"]
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for volume in volumes.values():
        for kind, field, key in (("Secret", "secret", "secretName"), ("ConfigMap", "configMap", "name"), ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName")):
            if field in volume:
                check((kind, volume[field][key]) in have, f"{where}: no {kind} {volume[field][key]}")
    check(spec["securityContext"]["runAsNonRoot"] is True, f"{where}: may be root")
    check(spec["automountServiceAccountToken"] is False, f"{where}: has the cluster's token")
    for container in spec["containers"] + spec.get("initContainers", []):
        check("readOnlyRootFilesystem" in container["securityContext"], f"{where}: its root file system is writable")
        check(container["resources"]["limits"]["memory"], f"{where}: memory without limit")
        check(":" in container["image"], f"{where}: image {container['image']} without a version")
        for mount in container.get("volumeMounts", []):
            check(mount["name"] in volumes or mount["name"] in claims, f"{where}: no volume {mount['name']}")
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                check(container[probe]["httpGet"]["port"] in ports, f"{where}: {probe} of another port")
        for variable in container.get("env", []):
            name = variable["name"]
            check(not name.startswith("TRIREME_") or name in variables, f"{where}: {name} is not in docs/configuration.md")


def scraped_ports():
    """The port that Prometheus scrapes at each service under docker compose."""
    configuration = yaml.safe_load((ROOT / "deploy" / "observability" / "prometheus.yml").read_text())
    return {job["job_name"]: job["dns_sd_configs"][0]["port"] for job in configuration["scrape_configs"]}


def check_scraping(where, service, template, policies):
    """A pod's annotations name the port of its metrics, and a policy lets Prometheus reach it."""
    port = scraped_ports()[service]
    expected = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}
    check(template["metadata"].get("annotations") == expected, f"{where}: annotations for Prometheus, expected {expected}")
    check(port in {p["containerPort"] for c in template["spec"]["containers"] for p in c["ports"]}, f"{where}: has no port {port}")
    reached = {
        rule_port["port"]
        for policy in policies
        if matches(policy["spec"]["podSelector"], template["metadata"]["labels"])
        for rule in policy["spec"].get("ingress", [])
        for rule_port in rule["ports"]
    }
    check(port in reached, f"{where}: no policy lets anybody reach its metrics on port {port}")


def only(objects, kind, name):
    """The object with this kind and name."""
    return next(thing for thing in objects if (thing["kind"], thing["metadata"]["name"]) == (kind, name))


def peers_of(objects, pod, direction):
    """The peers that the policies for a pod allow, incoming or outgoing: pairs of an `app` and a port."""
    peer = {"ingress": "from", "egress": "to"}[direction]
    return {
        (where.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/name"), port["port"])
        for policy in objects
        if policy["kind"] == "NetworkPolicy" and matches(policy["spec"]["podSelector"], pod["metadata"]["labels"])
        for rule in policy["spec"].get(direction, [])
        for where in rule.get(peer, [])
        for port in rule["ports"]
    }


def services(overlay):
    """The Deployments of an overlay."""
    return ("gateway", "tokenizer", "model", "postprocess", *(["python"] if "python" in overlay else []))


def check_brokers(overlay, objects):
    """Checks one broker, or a cluster whose brokers know one another, and that services know all of them."""
    broker, service = only(objects, "StatefulSet", "nats"), only(objects, "Service", "nats")
    spec, pod, replicas = broker["spec"], broker["spec"]["template"], broker["spec"]["replicas"]
    container = pod["spec"]["containers"][0]
    clustered = "cluster" in overlay
    check(replicas == (3 if clustered else 1), f"{overlay}: {replicas} brokers")
    names = [f"nats-{number}.{spec['serviceName']}" for number in range(replicas)] if clustered else ["nats"]
    urls = ",".join(f"nats://{name}:4222" for name in names)
    for name in services(overlay):
        variables = only(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]["env"]
        given = [variable["value"] for variable in variables if variable["name"] == "TRIREME_NATS_URL"]
        check(given == [urls], f"{overlay}: {name} looks for the broker at {given}, expected {urls}")
    configuration = f"/etc/nats/{'cluster' if clustered else 'nats-server'}.conf"
    check(container["args"][:2] == ["--config", configuration], f"{overlay}: the broker's arguments are {container['args']}")
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    check({configuration, "/etc/nats/nats-server.conf", "/etc/nats/users.conf", "/etc/nats/secrets", "/data"} <= mounted, f"{overlay}: the broker has {sorted(mounted)}")
    claims = [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]]
    data = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/data"]
    check(data == claims, f"{overlay}: the broker keeps its data in {data}, its claims are {claims}")
    if not clustered:
        return
    named = [v["valueFrom"]["fieldRef"]["fieldPath"] for v in container["env"] if v["name"] == "BROKER_NAME"]
    check(named == ["metadata.name"], f"{overlay}: a broker has the name {named}, expected its pod's")
    # Values in the configuration file: the port of routes, the permitted users, and the time that an orderly stop takes.
    text = only(objects, "ConfigMap", next(v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v))["data"]["cluster.conf"]
    port = int(re.search(r"^    port: (\d+)$", text, re.MULTILINE).group(1))
    secret = only(objects, "Secret", "trireme-nats-passwords")["stringData"]["routes.conf"]
    password = re.search(r'ROUTE_PASSWORD: "([0-9a-f]{64})"', secret).group(1)
    routes = re.findall(r'"(nats://[^"]+)"', secret)
    check(routes == [f"nats://route:{password}@{name}:{port}" for name in names], f"{overlay}: routes to other brokers than {names}")
    check(port in {entry["containerPort"] for entry in container["ports"]}, f"{overlay}: the broker has no port {port}")
    for direction in ("ingress", "egress"):
        peers = {peer for peer, to in peers_of(objects, pod, direction) if to == port}
        check(peers == {"nats"}, f"{overlay}: {direction} of routes: {peers}, expected brokers and nobody else")
    check(service["spec"]["clusterIP"] == "None" and service["spec"].get("publishNotReadyAddresses"), f"{overlay}: brokers have no names before they are ready")
    check(spec.get("podManagementPolicy") == "Parallel", f"{overlay}: the first broker would wait for a leader, and the others for the first")
    check("js-enabled-only" in container["livenessProbe"]["httpGet"]["path"], f"{overlay}: a broker that lost the others would be started again and again")
    check("js-meta-only" in container["readinessProbe"]["httpGet"]["path"], f"{overlay}: a broker is ready without a leader of the cluster")
    stop = int(re.search(r'^lame_duck_duration: "(\d+)s"$', text, re.MULTILINE).group(1))
    check("ldm=1" in container["lifecycle"]["preStop"]["exec"]["command"], f"{overlay}: a broker keeps its leaderships until it ends")
    check(pod["spec"]["terminationGracePeriodSeconds"] >= stop + 10, f"{overlay}: a broker is killed before it has ended in order")
    budget = only(objects, "PodDisruptionBudget", "nats")["spec"]
    check(budget["maxUnavailable"] == 1 and matches(budget["selector"], pod["metadata"]["labels"]), f"{overlay}: two brokers may go at a time")
    spread = pod["spec"]["topologySpreadConstraints"][0]
    expected = {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "minDomains": replicas}
    check(expected.items() <= spread.items() and matches(spread["labelSelector"], pod["metadata"]["labels"]), f"{overlay}: two brokers may be on one node")


def check_overlay(overlay, objects):
    """Checks the objects of one overlay; returns their number."""
    objects = objects + secrets()
    for thing in objects:
        where = f"{overlay}: {thing['kind']} {thing['metadata']['name']}"
        if not thing["apiVersion"].startswith("keda.sh/"):
            try:
                kubernetes_validate.validate(thing, KUBERNETES, strict=True)
            except kubernetes_validate.ValidationError as error:
                check(False, f"{where}: {'.'.join(map(str, error.path))}: {error.message}")
        check(thing["metadata"].get("namespace", "trireme") == "trireme", f"{where}: in another namespace")
    have = {(thing["kind"], thing["metadata"]["name"]) for thing in objects}
    check(len(have) == len(objects), f"{overlay}: two objects of one name")
    variables = set(re.findall(r"`(TRIREME_[A-Z_]+)`", (ROOT / "docs" / "configuration.md").read_text()))
    demo = {path.parent.name for path in (ROOT / "examples" / "demo").glob("*/*")}
    queues = queues_of(demo)

    workloads = {t["metadata"]["name"]: t for t in objects if t["kind"] in ("Deployment", "StatefulSet")}
    check(set(workloads) == {"nats", *services(overlay)}, f"{overlay}: {sorted(workloads)}")
    pods = {name: workload["spec"]["template"] for name, workload in workloads.items()}
    for name, workload in workloads.items():
        labels = pods[name]["metadata"]["labels"]
        check(matches(workload["spec"]["selector"], labels), f"{overlay}: {name} does not select its own pods")
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        check_pod(f"{overlay}: {name}", pods[name], have, variables, claims)
        if name != "nats":
            check_scraping(f"{overlay}: {name}", name, pods[name], [t for t in objects if t["kind"] == "NetworkPolicy"])
    for thing in objects:
        where, spec = f"{overlay}: {thing['kind']} {thing['metadata']['name']}", thing.get("spec", {})
        if thing["kind"] == "Service":
            chosen = [pod for pod in pods.values() if matches({"matchLabels": spec["selector"]}, pod["metadata"]["labels"])]
            check(len(chosen) == 1, f"{where}: chooses {len(chosen)} workloads")
            ports = {port["name"] for pod in chosen for container in pod["spec"]["containers"] for port in container["ports"]}
            check({port["targetPort"] for port in spec["ports"]} <= ports, f"{where}: a port that nobody has")
        if thing["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            selector = spec.get("podSelector", spec.get("selector"))
            check(any(matches(selector, pod["metadata"]["labels"]) for pod in pods.values()), f"{where}: chooses nothing")
        if thing["kind"] == "ScaledObject":
            check_scaled_object(thing, workloads, queues)
    check_brokers(overlay, objects)
    return len(objects)


def check_egress(components):
    """Each component opens its own way out of its own pods, and without them there is none but to the broker and the name service."""
    ways = {
        "webhooks": {"gateway": 443},
        "otlp": dict.fromkeys(services("python"), 4317),
        "downloads": dict.fromkeys(services("python"), 443),
    }
    for component in ("", *components):
        overlay = "base+python" + (f"+{component}" if component else "")
        objects = render(overlay)
        for name in services("python"):
            pod = only(objects, "Deployment", name)["spec"]["template"]
            found = {port for _, port in peers_of(objects, pod, "egress")} - {53, 4222}
            wanted = {ways[component][name]} if name in ways.get(component, {}) else set()
            check(found == wanted, f"{overlay}: {name} may connect to ports {found}, expected {wanted}")


def check_kserve():
    """The ServingRuntime: its pod against Kubernetes' schema, its arguments against the flags, and the InferenceService against it."""
    folder = ROOT / "deploy" / "kserve"
    runtime, service = (yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in ("serving-runtime", "inference-service"))
    spec = runtime["spec"]
    pod = {"containers": spec["containers"], "volumes": spec["volumes"]}
    try:
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kserve"}, "spec": pod}, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        check(False, f"kserve: {'.'.join(map(str, error.path))}: {error.message}")
    container = spec["containers"][0]
    flags = set(re.findall(r"`(--[a-z-]+)", (ROOT / "docs" / "configuration.md").read_text()))
    given = {word for word in container["args"] if word.startswith("--")}
    check(container["name"] == "kserve-container" and given <= flags, f"kserve: flags {given - flags} are not in docs/configuration.md")
    served = int(container["args"][container["args"].index("--http-port") + 1])
    probed = {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    ports = {port["containerPort"] for port in container["ports"]}
    check(ports == probed == {served}, f"kserve: port {served} is served, probed are {probed}, KServe calls {ports}")
    model = service["spec"]["predictor"]["model"]
    check(model["runtime"] == runtime["metadata"]["name"], f"kserve: the service names runtime {model['runtime']}")
    check(model["protocolVersion"] in spec["protocolVersions"], f"kserve: protocol {model['protocolVersion']}")
    formats = {entry["name"] for entry in spec["supportedModelFormats"]}
    check(model["modelFormat"]["name"] in formats, f"kserve: format {model['modelFormat']}, the runtime has {formats}")


def main():
    """Checks all overlays; skips the test if there is no kustomize."""
    check_scaled_object(
        yaml.safe_load((FOLDER / "python" / "scaled-object.yaml").read_text()), {"python"}, queues_of(["preprocessing"])
    )
    for overlay in ("base", "demo", "base+cluster", "demo-cluster", "base+python", "base+python+cluster", "base+webhooks+otlp+downloads"):
        objects = render(overlay)
        if objects is None:
            print("==> skipped: neither kustomize nor kubectl is installed")
            return
        count = check_overlay(overlay, objects)
        print(f"==> deploy/kubernetes/{overlay}: {count} objects checked against Kubernetes {KUBERNETES}")
    check_egress(("webhooks", "otlp", "downloads"))
    check_kserve()
    chart_test.check_chart(render, check_overlay, check)
    documented = (ROOT / "docs" / "metrics.md").read_text()
    check(METRICS and all(f"| `{metric}` |" in documented for metric in METRICS), f"{METRICS} are not in docs/metrics.md")
    if FAULTS:
        sys.exit("\n".join(FAULTS))


if __name__ == "__main__":
    main()
