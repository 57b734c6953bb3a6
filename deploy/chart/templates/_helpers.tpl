{{- define "topolet.namespace" -}}
{{ if .Values.kustomize }}$(TOPOLET_NAMESPACE){{ else }}{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- define "topolet.schedulerName" -}}
{{ if .Values.kustomize }}$(TOPOLET_SCHEDULER_NAME){{ else }}{{ .Values.scheduler.name }}{{ end }}
{{- end }}

{{/* What a policy about the requests of users does. Policies about Topolet's own accounts always refuse. */}}
{{- define "topolet.actions" -}}
{{ if eq .Values.policies.mode "warn" }}[Warn, Audit]{{ else }}[Deny]{{ end }}
{{- end }}

{{/*
The lines of the accounts that bind any pod in a labelled namespace. A webhook that reads pods decides by the
pod, for the cluster's kube-scheduler too.
*/}}
{{- define "topolet.binders" -}}
{{ $default := ternary list (list "system:kube-scheduler") (and .Values.webhook.enabled .Values.webhook.clientCA) -}}
{{ join "\n      " (ternary $default .Values.policies.binders (kindIs "invalid" .Values.policies.binders)) }}
{{- end }}

{{/* An image, of a dict with registry, repository, tag and digest, any of them empty. */}}
{{- define "topolet.reference" -}}
{{ with .registry }}{{ . }}/{{ end }}{{ .repository }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Kubernetes' own version of the API server, without what a distribution adds (-eks-1, +k3s1); empty: it has none. */}}
{{- define "topolet.version" -}}
{{ regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version }}
{{- end }}

{{/* Topolet's image; of a dict with root and image, whose fields replace those of all pods. */}}
{{- define "topolet.image" -}}
{{ $image := mergeOverwrite (dict "tag" .root.Chart.AppVersion) (pick .root.Values.image "registry" "repository" "digest") -}}
{{ with .root.Values.image.tag }}{{ $_ := set $image "tag" . }}{{ end -}}
{{ with .image }}
{{- if .tag }}{{ $_ := set $image "digest" "" }}{{ end -}}
{{ $image = mergeOverwrite $image . }}
{{- end -}}
{{ include "topolet.reference" $image }}
{{- end }}

{{/* Without a registry nobody is asked for an image: it has to be on the node. */}}
{{- define "topolet.pullPolicy" -}}
{{ .Values.image.pullPolicy | default (ternary "IfNotPresent" "Never" (not (empty .Values.image.registry))) }}
{{- end }}

{{- define "topolet.pullSecrets" -}}
{{ with .Values.image.pullSecrets }}
      imagePullSecrets:
{{- range . }}
      - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The socket of a runtime, of its name or its path. */}}
{{- define "topolet.socket" -}}
{{ $sockets := dict
  "containerd" "/run/containerd/containerd.sock"
  "cri-o" "/run/crio/crio.sock"
  "k3s" "/run/k3s/containerd/containerd.sock"
  "rke2" "/run/k3s/containerd/containerd.sock"
  "microk8s" "/var/snap/microk8s/common/run/containerd.sock" -}}
{{ get $sockets . | default . }}
{{- end }}

{{/* The kubelet's folder on nodes of a runtime. */}}
{{- define "topolet.kubeletDir" -}}
{{ ternary "/var/snap/microk8s/common/var/lib/kubelet" "/var/lib/kubelet" (eq . "microk8s") }}
{{- end }}

{{/* Whether the agents of a pool are a DRA driver, or "". */}}
{{- define "topolet.dra" -}}
{{ if eq (toString (get (.settings | default dict) "dra")) "true" }}true{{ end }}
{{- end }}

{{/* Where the runtime of a pool finds CDI files. */}}
{{- define "topolet.cdiDir" -}}
{{ get (.settings | default dict) "cdi-dir" | default "/var/run/cdi" }}
{{- end }}

{{/* The name of the DaemonSet of a pool of topolet.pools. */}}
{{- define "topolet.daemonSet" -}}
topolet-agent{{ with .name }}-{{ . }}{{ end }}{{ if .canary }}-canary{{ end }}
{{- end }}

{{/* Of a container that installs the proxy on the host, or removes it: chroot, and files of other owners. */}}
{{- define "topolet.hostSecurity" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL], add: [SYS_CHROOT, DAC_OVERRIDE, FOWNER, CHOWN]}
{{- end }}

{{/* The annotations of what exists only while the release is removed. */}}
{{- define "topolet.beforeRemoval" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end }}

{{/* The annotations of what exists only while the release is tested. */}}
{{- define "topolet.duringTest" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end }}

{{/*
The pod that undoes the changes of a node of a pool, without the node's name; of a dict with root and pool.
Only where the chart installed the proxy it has the host's root.
*/}}
{{- define "topolet.uninstallPod" -}}
{{ $runtime := .pool.runtime | default "containerd" -}}
{{ $socket := include "topolet.socket" $runtime -}}
{{ $kubelet := .pool.kubeletDir | default (include "topolet.kubeletDir" $runtime) -}}
{{ $dra := include "topolet.dra" .pool -}}
{{ $cdi := include "topolet.cdiDir" .pool -}}
metadata:
  labels: {app.kubernetes.io/name: topolet, app.kubernetes.io/component: uninstall-node}
  {{- if eq (.pool.mode | default "reconcile") "nri" }}
  annotations: {tolerate-missing-plugins.topolet.io/pod: "true"}
  {{- end }}
spec:
  serviceAccountName: topolet-uninstall-node
  restartPolicy: Never
  enableServiceLinks: false
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
  {{- end }}
  {{- with .root.Values.agent.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  tolerations:
  - operator: Exists
  {{- if or .pool.installProxy .pool.oomScores .pool.coreScheduling }}
  hostPID: true
  {{- end }}
  {{- if .pool.installProxy }}
  terminationGracePeriodSeconds: 300
  {{- end }}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    seccompProfile: {type: RuntimeDefault}
  containers:
  - name: uninstall
    image: {{ include "topolet.image" (dict "root" .root "image" .pool.image) }}
    imagePullPolicy: {{ include "topolet.pullPolicy" .root }}
    args:
    - uninstall-node
    - --node-name=$(NODE_NAME)
    {{- if not .pool.installProxy }}
    - --without-proxy
    {{- end }}
    terminationMessagePolicy: FallbackToLogsOnError
    env:
    - name: NODE_NAME
      valueFrom:
        fieldRef: {fieldPath: spec.nodeName}
    - {name: TOPOLET_ROOT, value: /host}
    - {name: TOPOLET_CGROUP_ROOT, value: /host/sys/fs/cgroup}
    # In its parent's mount: so the folder itself can be removed.
    - {name: TOPOLET_STATE_DIR, value: /host/run/topolet}
    - {name: TOPOLET_RUNTIME_ENDPOINT, value: "unix://{{ $socket }}"}
    {{- if $dra }}
    - {name: TOPOLET_KUBELET_DIR, value: {{ $kubelet }}}
    - {name: TOPOLET_CDI_DIR, value: {{ $cdi }}}
    {{- end }}
    securityContext:
      {{- if .pool.installProxy }}
      {{- $security := include "topolet.hostSecurity" .root }}
      {{- if .pool.oomScores }}{{ $security = replace "CHOWN]" "CHOWN, SYS_RESOURCE]" $security }}{{ end }}
      {{- if .pool.coreScheduling }}{{ $security = replace "FOWNER" "FOWNER, SYS_PTRACE" $security }}{{ end }}
      {{- if .pool.quiet }}{{ $security = replace "FOWNER" "FOWNER, NET_ADMIN" $security }}{{ end }}
      {{- $security | nindent 6 }}
      {{- else }}
      privileged: false
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
        {{- if or .pool.oomScores .pool.coreScheduling .pool.quiet }}
        add:
        {{- if .pool.oomScores }}
        - DAC_OVERRIDE
        - SYS_RESOURCE
        {{- end }}
        {{- if .pool.coreScheduling }}
        - SYS_PTRACE
        {{- end }}
        {{- if .pool.quiet }}
        - NET_ADMIN
        {{- end }}
        {{- end }}
      {{- end }}
    resources:
      # What the agent had, which has ended.
      requests: {cpu: 10m, memory: 42Mi}
      limits: {memory: 256Mi}
    volumeMounts:
    {{- if .pool.installProxy }}
    - {name: host, mountPath: /host}
    {{- else }}
    - {name: proc, mountPath: /host/proc, readOnly: true}
    - {name: cgroup, mountPath: /host/sys/fs/cgroup}
    {{- if .pool.resctrl }}
    - {name: resctrl, mountPath: /host/sys/fs/resctrl}
    {{- end }}
    {{- if .pool.quiet }}
    - {name: irq, mountPath: /host/proc/irq}
    - {name: devices, mountPath: /host/sys/devices}
    # Links to devices.
    - {name: net, mountPath: /host/sys/class/net, readOnly: true}
    {{- end }}
    - {name: run, mountPath: /host/run}
    {{- end }}
    - {name: runtime, mountPath: {{ dir $socket }}, readOnly: true}
    {{- if $dra }}
    - {name: dra-registry, mountPath: {{ $kubelet }}/plugins_registry}
    - {name: dra-plugins, mountPath: {{ $kubelet }}/plugins}
    - {name: cdi, mountPath: {{ $cdi }}}
    {{- end }}
  volumes:
  {{- if .pool.installProxy }}
  - name: host
    hostPath: {path: /, type: Directory}
  {{- else }}
  - name: proc
    hostPath: {path: /proc, type: Directory}
  - name: cgroup
    hostPath: {path: /sys/fs/cgroup, type: Directory}
  {{- if .pool.resctrl }}
  - name: resctrl
    hostPath: {path: /sys/fs/resctrl, type: Directory}
  {{- end }}
  {{- if .pool.quiet }}
  - name: irq
    hostPath: {path: /proc/irq, type: Directory}
  - name: devices
    hostPath: {path: /sys/devices, type: Directory}
  - name: net
    hostPath: {path: /sys/class/net, type: Directory}
  {{- end }}
  - name: run
    hostPath: {path: /run, type: Directory}
  {{- end }}
  - name: runtime
    hostPath: {path: {{ dir $socket }}, type: Directory}
  {{- if $dra }}
  - name: dra-registry
    hostPath: {path: {{ $kubelet }}/plugins_registry, type: DirectoryOrCreate}
  - name: dra-plugins
    hostPath: {path: {{ $kubelet }}/plugins, type: DirectoryOrCreate}
  - name: cdi
    hostPath: {path: {{ $cdi }}, type: DirectoryOrCreate}
  {{- end }}
{{- end }}

{{/* The value of an option as a flag has it: numbers of YAML are floats here. */}}
{{- define "topolet.option" -}}
{{ if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/*
The DaemonSets of the agent, as JSON: for each pool one, or two if it has a canary. A node belongs to the
first pool whose label it has: the later ones exclude it.
*/}}
{{- define "topolet.pools" -}}
{{ $found := list }}{{ $others := list }}{{ $names := dict }}
{{- range .Values.pools }}
{{- $pool := . }}
{{- $name := .name | default "" }}
{{- if hasKey $names (printf "pool %s" $name) }}{{ fail (printf "pools: two of them have the name %q" $name) }}{{ end }}
{{- $_ := set $names (printf "pool %s" $name) true }}
{{- if hasKey $names "every node" }}{{ fail (printf "pools: the pool %q comes after one without a nodeSelector, which has every other node" $name) }}{{ end }}
{{- if and .installProxy (ne (.mode | default "reconcile") "proxy") }}{{ fail (printf "pools: the pool %q has installProxy, which needs mode proxy" $name) }}{{ end }}
{{- if not .nodeSelector }}{{ $_ := set $names "every node" true }}{{ end }}
{{- $main := merge (dict "excluded" $others) (omit . "canary") }}
{{- with .canary }}
{{- $selector := mergeOverwrite (dict "topolet.io/canary" "true") ($pool.nodeSelector | default dict) }}
{{- $settings := mergeOverwrite (deepCopy ($pool.settings | default dict)) (.settings | default dict) }}
{{- $found = append $found (merge (dict "canary" true "nodeSelector" $selector "settings" $settings "image" (.image | default $pool.image)) (omit $main "nodeSelector" "settings" "image")) }}
{{- $main = mergeOverwrite (deepCopy $main) (dict "excluded" (append $others (dict "key" "topolet.io/canary" "value" "true"))) }}
{{- end }}
{{- $found = append $found $main }}
{{- range $key, $value := .nodeSelector }}{{ $others = append $others (dict "key" $key "value" $value) }}{{ end }}
{{- end }}
{{- dict "pools" $found | toJson }}
{{- end }}

{{/*
Certificate and key of a server of Topolet, as JSON with tls.crt, tls.key and ca.crt in base64; of a dict with
root and name. It is that of the Secret until three quarters of its time have passed, and one for all
templates.
*/}}
{{- define "topolet.generated" -}}
{{ $root := .root }}{{ $key := printf "generated-%s" .name }}
{{- if not (hasKey $root.Values $key) }}
{{- $stored := lookup "v1" "Secret" $root.Release.Namespace (printf "%s-tls" .name) | default dict }}
{{- $until := dig "metadata" "annotations" "topolet.io/renew-after" "" $stored }}
{{- if and $until (gt (toDate "2006-01-02" $until | unixEpoch | int64) (now | unixEpoch | int64)) }}
{{- $_ := set $root.Values $key (dict "data" $stored.data "until" $until) }}
{{- else }}
{{- $days := int $root.Values.certificates.days }}
{{- $host := printf "%s.%s.svc" .name $root.Release.Namespace }}
{{- $ca := genCA (printf "%s-ca" .name) $days }}
{{- $made := genSignedCert $host nil (list $host) $days $ca }}
{{- $data := dict "tls.crt" (b64enc $made.Cert) "tls.key" (b64enc $made.Key) "ca.crt" (b64enc $ca.Cert) }}
{{- $until = now | dateModify (printf "+%dh" (mul $days 18)) | date "2006-01-02" }}
{{- $_ := set $root.Values $key (dict "data" $data "until" $until) }}
{{- end }}
{{- end }}
{{- get $root.Values $key | toJson }}
{{- end }}

{{/* The Secret of a server, or what makes cert-manager write it; of a dict with root and name. */}}
{{- define "topolet.certificate" -}}
{{ $root := .root }}
{{- if eq $root.Values.certificates.source "generate" }}
{{- $made := include "topolet.generated" . | fromJson }}
apiVersion: v1
kind: Secret
metadata:
  name: {{ .name }}-tls
  namespace: {{ $root.Release.Namespace }}
  annotations:
    # The first upgrade after this day makes another certificate.
    topolet.io/renew-after: {{ $made.until | quote }}
type: kubernetes.io/tls
data:
{{- range $file, $text := $made.data }}
  {{ $file }}: {{ $text }}
{{- end }}
{{- else if eq $root.Values.certificates.source "cert-manager" }}
{{- $host := printf "%s.%s.svc" .name $root.Release.Namespace }}
{{- if not $root.Values.certificates.issuerRef }}
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
spec:
  selfSigned: {}
---
{{- end }}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
spec:
  secretName: {{ .name }}-tls
  commonName: {{ $host }}
  dnsNames: [{{ $host }}]
  usages: [digital signature, server auth, client auth]
  issuerRef:
    {{- $root.Values.certificates.issuerRef | default (dict "name" .name) | toYaml | nindent 4 }}
{{- end }}
{{- end }}

{{/* The CA of the webhook for the API server, in base64; empty if somebody else writes it. */}}
{{- define "topolet.caBundle" -}}
{{ if .Values.kustomize }}{{ else if eq .Values.certificates.source "generate" -}}
{{ $made := include "topolet.generated" (dict "root" . "name" "topolet-webhook") | fromJson -}}
{{ get $made.data "ca.crt" }}
{{- else if eq .Values.certificates.source "secret" -}}
{{ $stored := lookup "v1" "Secret" .Release.Namespace "topolet-webhook-tls" | default dict -}}
{{ .Values.webhook.caBundle | default (dig "data" "ca.crt" "" $stored) | default (dig "data" "tls.crt" "" $stored) }}
{{- end }}
{{- end }}

{{/* Fields of the wanted schema that the served one lacks, each on a line; of a dict with wanted, served, at. */}}
{{- define "topolet.lacking" -}}
{{ $served := .served }}{{ $at := .at }}
{{- if not (get $served "x-kubernetes-preserve-unknown-fields") }}
{{- range $name, $wanted := (get .wanted "properties" | default dict) }}
{{- $field := printf "%s.%s" $at $name }}
{{- if not (or (hasKey (get $served "properties" | default dict) $name) (eq $field ".metadata")) }}
{{ $field }}
{{- else if ne $field ".metadata" }}
{{- include "topolet.lacking" (dict "wanted" $wanted "served" (get $served.properties $name) "at" $field) }}
{{- end }}
{{- end }}
{{- if and (hasKey .wanted "items") (hasKey $served "items") }}
{{- include "topolet.lacking" (dict "wanted" .wanted.items "served" $served.items "at" (printf "%s[]" $at)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether this release owns the stored object, or ""; of a dict with root and stored. */}}
{{- define "topolet.owned" -}}
{{- $notes := dig "metadata" "annotations" dict .stored }}
{{- if and (eq (get $notes "meta.helm.sh/release-name") .root.Release.Name) (eq (get $notes "meta.helm.sh/release-namespace") .root.Release.Namespace) }}true{{ end }}
{{- end }}

{{/*
The files of the definitions, as JSON. That of RebindResource comes with the scheduler, and stays in a release
without it: Helm 3 can't take a definition back into a release that has left it out.
*/}}
{{- define "topolet.definitions" -}}
{{- $stored := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "rebindresources.scheduling.koordinator.sh" | default dict }}
{{- $owned := include "topolet.owned" (dict "root" . "stored" $stored) }}
{{- $files := list "devices" "noderesourcetopologies" }}
{{- if or .Values.scheduler.enabled $owned }}{{ $files = append $files "rebindresources" }}{{ end }}
{{- $files | toJson }}
{{- end }}

{{/*
What is to be done with a definition, as JSON: install, and if not, what the stored one lacks; of a dict with
root and file. One that this release does not own is left as it is. It fails if no version that Topolet uses is served.
*/}}
{{- define "topolet.definition" -}}
{{ $wanted := .root.Files.Get .file | fromYaml }}{{ $root := .root }}
{{- $name := $wanted.metadata.name }}
{{- $stored := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name | default dict }}
{{- $notes := dig "metadata" "annotations" dict $stored }}
{{- $owned := include "topolet.owned" (dict "root" $root "stored" $stored) }}
{{- $owner := get $notes "meta.helm.sh/release-name" | default "no release of Helm" }}
{{- $lacking := list }}
{{- if and $stored (not $owned) (not (has $name $root.Values.crds.adopt)) }}
{{- $served := dict }}
{{- range $stored.spec.versions }}{{ if .served }}{{ $_ := set $served .name (dig "schema" "openAPIV3Schema" dict .) }}{{ end }}{{ end }}
{{- $common := 0 }}
{{- range $wanted.spec.versions }}
{{- if hasKey $served .name }}
{{- $common = add1 $common }}
{{- $fields := include "topolet.lacking" (dict "wanted" .schema.openAPIV3Schema "served" (get $served .name) "at" "") | trim }}
{{- if $fields }}{{ $lacking = concat $lacking (splitList "\n" $fields) }}{{ end }}
{{- end }}
{{- end }}
{{- if not $common }}
{{- fail (printf "CustomResourceDefinition %s: it exists, its owner is %s, and it serves none of the versions that Topolet uses (%s); update it with its owner, or name it in crds.adopt" $name $owner (join ", " (pluck "name" (index $wanted.spec.versions 0)))) }}
{{- end }}
{{- dict "install" false "name" $name "owner" $owner "lacking" (uniq $lacking) | toJson }}
{{- else }}
{{- dict "install" true "name" $name "owner" $owner "lacking" list | toJson }}
{{- end }}
{{- end }}
