{{/* The objects of a file of deploy/kubernetes, as a dictionary with the list `items`. Arguments: root, file. */}}
{{- define "trireme.read" -}}
{{- $items := list -}}
{{- $text := .root.Files.Get .file -}}
{{- if not $text }}{{ fail (printf "the chart lacks %s: the links of its folder files have to be followed" .file) }}{{ end -}}
{{- range splitList "\n---\n" $text }}{{ $items = append $items (fromYaml .) }}{{ end -}}
{{- toYaml (dict "items" $items) -}}
{{- end -}}

{{/* The broker's URLs. */}}
{{- define "trireme.urls" -}}
{{- if not .Values.nats.create -}}{{ required "nats.create is false: nats.url has to name the broker" .Values.nats.url }}
{{- else if .Values.nats.cluster -}}nats://nats-0.nats:4222,nats://nats-1.nats:4222,nats://nats-2.nats:4222
{{- else -}}nats://nats:4222{{ end -}}
{{- end -}}

{{/* A model's name as it is in subjects: characters other than letters, digits, - and _ are = and two hexadecimal digits. */}}
{{- define "trireme.token" -}}
{{- range splitList "" . }}{{ if regexMatch "^[A-Za-z0-9_-]$" . }}{{ . }}{{ else }}{{ printf "=%X" . }}{{ end }}{{ end -}}
{{- end -}}

{{/* A service's objects with the values. Arguments: root, name, file. */}}
{{- define "trireme.service" -}}
{{- $root := .root -}}{{- $name := .name -}}{{- $values := index $root.Values $name -}}{{- $all := $root.Values -}}
{{- range (include "trireme.read" . | fromYaml).items -}}
{{- if eq .kind "PodDisruptionBudget" -}}
{{- if $values.disruptionBudget }}{{ include "trireme.print" (dict "root" $root "object" .) }}{{ end -}}
{{- else if eq .kind "Service" -}}
{{- if ne $all.service.type "ClusterIP" }}{{ $_ := set .spec "type" $all.service.type }}{{ end -}}
{{- if $all.service.annotations }}{{ $_ := set .metadata "annotations" $all.service.annotations }}{{ end -}}
{{- include "trireme.print" (dict "root" $root "object" .) -}}
{{- else -}}
{{- /* The scaler chooses the replicas; an upgrade of the release would set them back. */ -}}
{{- $scaled := and $all.keda.enabled (ne $name "gateway") (index $all.keda $name | default dict).models -}}
{{- if $scaled }}{{ $_ := unset .spec "replicas" }}{{ else }}{{ $_ := set .spec "replicas" $values.replicas }}{{ end -}}
{{- $template := .spec.template -}}{{- $pod := $template.spec -}}{{- $container := first $pod.containers -}}
{{- $_ := set $template.metadata "annotations" (merge (dict) $values.annotations $template.metadata.annotations) -}}
{{- $registry := $all.images.registry | trimSuffix "/" -}}
{{- $_ := set $container "image" (printf "%s%s:%s" (ternary (printf "%s/" $registry) "" (ne $registry "")) $container.image ($all.images.tag | default $root.Chart.AppVersion)) -}}
{{- with $all.images.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- with $all.images.pullSecrets }}{{ $secrets := list }}{{ range . }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}{{ $_ := set $pod "imagePullSecrets" $secrets }}{{ end -}}
{{- with $values.resources }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- $given := dict "TRIREME_NATS_URL" (include "trireme.urls" $root) "TRIREME_DEPLOYMENT" $all.deployment -}}
{{- if and $all.keda.enabled (eq $name "gateway") }}{{ $_ := set $given "TRIREME_KEEP_MODELS" "true" }}{{ end -}}
{{- if $all.models.url -}}
{{- $_ := set $given "TRIREME_MODEL_REPOSITORY" $all.models.url -}}{{- $_ := set $given "XDG_CACHE_HOME" "/cache" -}}
{{- end -}}
{{- range $variable, $value := $values.env }}{{ $_ := set $given $variable $value }}{{ end -}}
{{- $env := list -}}
{{- range $container.env -}}
{{- if hasKey $values.secretEnv .name -}}
{{- else if not (hasKey $given .name) -}}{{ $env = append $env . }}
{{- else if not (kindIs "invalid" (index $given .name)) -}}{{ $env = append $env (dict "name" .name "value" (toString (index $given .name))) }}{{ end -}}
{{- $_ := unset $given .name -}}
{{- end -}}
{{- range $variable, $value := $given }}{{ if not (kindIs "invalid" $value) }}{{ $env = append $env (dict "name" $variable "value" (toString $value)) }}{{ end }}{{ end -}}
{{- range $variable, $key := $values.secretEnv }}{{ $env = append $env (dict "name" $variable "valueFrom" (dict "secretKeyRef" $key)) }}{{ end -}}
{{- $_ := set $container "env" $env -}}
{{- $volumes := list -}}
{{- range $pod.volumes -}}
{{- if and (eq .name "models") $all.models.url -}}{{ continue }}
{{- else if eq .name "models" -}}{{ $_ := set .persistentVolumeClaim "claimName" $all.models.claim }}
{{- else if and (eq .name "cache") $all.models.url -}}{{ continue }}
{{- else if eq .name "password" -}}{{ $_ := set .secret "secretName" (index $all.nats.secrets $name) }}{{ end -}}
{{- $volumes = append $volumes . -}}
{{- end -}}
{{- if $all.models.url -}}
{{- $volumes = append $volumes (dict "name" "cache" "emptyDir" (dict "sizeLimit" $all.models.cache)) -}}
{{- $mounts := list (dict "name" "cache" "mountPath" "/cache") -}}
{{- range $container.volumeMounts }}{{ if not (has .name (list "models" "cache")) }}{{ $mounts = append $mounts . }}{{ end }}{{ end -}}
{{- $_ := set $container "volumeMounts" $mounts -}}
{{- end -}}
{{- $_ := set $pod "volumes" $volumes -}}
{{- $_ := set $pod "containers" (list $container) -}}
{{- $_ := set $template "spec" (mergeOverwrite $pod $values.pod) -}}
{{- include "trireme.print" (dict "root" $root "object" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An object with the labels that all have. Arguments: root, object. */}}
{{- define "trireme.print" -}}
{{- $labels := dict "app.kubernetes.io/part-of" "trireme" -}}
{{- $_ := set .object.metadata "labels" (merge (dict) $labels (dict "app.kubernetes.io/managed-by" .root.Release.Service "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version)) (.object.metadata.labels | default dict)) -}}
{{- with (.object.spec | default dict).template }}{{ $_ := set .metadata "labels" (merge (dict) $labels .metadata.labels) }}{{ end }}
---
{{ toYaml .object }}
{{- end -}}
