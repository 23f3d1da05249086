#!/usr/bin/env python3
"""`make kubernetes-test`: renders deploy/kubernetes and checks what comes out.

Every object against Kubernetes' published schema (strictly: an unknown field is an error), KEDA's against what its
documentation asks for, and that names fit together: selectors, ports, volumes, secrets, queues, and environment variables
against docs/configuration.md; that Prometheus finds every service's metrics.
"""

import pathlib
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.32"
FAULTS = []


def check(holds, text):
    """Notes a fault."""
    if not holds:
        FAULTS.append(text)


def render(overlay):
    """The objects of an overlay, or None where there is nothing to render it with."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, FOLDER / overlay], text=True, capture_output=True, check=False)
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


def check_scaled_object(thing, workloads, queues):
    """A KEDA ScaledObject for a queue of NATS."""
    where, spec = f"ScaledObject {thing['metadata']['name']}", thing["spec"]
    known = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "triggers"}
    check(set(spec) <= known, f"{where}: unknown fields {set(spec) - known}")
    check(spec["scaleTargetRef"]["name"] in workloads, f"{where}: there is no such Deployment")
    check(spec["minReplicaCount"] == 0 < spec["maxReplicaCount"], f"{where}: scales to none")
    for trigger in spec["triggers"]:
        check(trigger["type"] == "nats-jetstream", f"{where}: trigger {trigger['type']}")
        metadata = trigger["metadata"]
        needed = {"natsServerMonitoringEndpoint", "account", "stream", "consumer", "lagThreshold", "activationLagThreshold"}
        check(set(metadata) == needed, f"{where}: {set(metadata) ^ needed}")
        check(all(isinstance(value, str) for value in metadata.values()), f"{where}: metadata are texts")
        check(metadata["stream"] in queues, f"{where}: no queue {metadata['stream']}, the demo has {sorted(queues)}")
        check(metadata["natsServerMonitoringEndpoint"].startswith("nats.trireme."), f"{where}: another broker")


def check_pod(where, template, have, variables, claims):
    """A pod's references: volumes, secrets, ports, environment variables; and that it runs without rights."""
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
    """The port that Prometheus asks each service at under docker compose."""
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


def check_overlay(overlay):
    """Everything about one overlay; returns how many objects it has, or None."""
    objects = render(overlay)
    if objects is None:
        return None
    objects += secrets()
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
    queues = {f"trireme_work_{model}_1" for model in demo}

    workloads = {t["metadata"]["name"]: t for t in objects if t["kind"] in ("Deployment", "StatefulSet")}
    check(set(workloads) == {"nats", "gateway", "tokenizer", "model", "postprocess"}, f"{overlay}: {sorted(workloads)}")
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
    return len(objects)


def main():
    """Checks both overlays; skips where there is no kustomize."""
    for overlay in ("base", "demo"):
        count = check_overlay(overlay)
        if count is None:
            print("==> skipped: neither kustomize nor kubectl is installed")
            return
        print(f"==> deploy/kubernetes/{overlay}: {count} objects checked against Kubernetes {KUBERNETES}")
    if FAULTS:
        sys.exit("\n".join(FAULTS))


if __name__ == "__main__":
    main()
