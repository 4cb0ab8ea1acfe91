#!/bin/sh
# GCP: machines in the default network of the current project, named NAME-1, NAME-2, ...

create_network() {
  gcloud compute firewall-rules create "$NAME-nodes" --allow tcp:9092-9093 \
    --source-tags "$NAME" --target-tags "$NAME" --quiet
  gcloud compute firewall-rules create "$NAME-ssh" --allow tcp:22 \
    --source-ranges "$ADMIN_CIDR" --target-tags "$NAME" --quiet
}

create_machine() { # create_machine NUMBER ZONE
  gcloud compute instances create "$NAME-$1" --zone "$2" --machine-type "$MACHINE" \
    --image-family "$IMAGE" --image-project "$IMAGE_PROJECT" \
    --boot-disk-size "${DISK_GB}GB" --boot-disk-type pd-ssd --tags "$NAME" \
    --metadata "ssh-keys=$SSH_USER:$(cat "$SSH_KEY.pub")" \
    --metadata-from-file "user-data=$here/cloud-init.yaml" --quiet
}

print_addresses() { # print_addresses NUMBER ZONE: the private and the public one
  gcloud compute instances describe "$NAME-$1" --zone "$2" --format \
    'value(networkInterfaces[0].networkIP,networkInterfaces[0].accessConfigs[0].natIP)'
}

delete_everything() {
  number=0
  for zone in $ZONES; do
    number=$((number + 1))
    gcloud compute instances delete "$NAME-$number" --zone "$zone" --quiet
  done
  gcloud compute firewall-rules delete "$NAME-nodes" "$NAME-ssh" --quiet
}
