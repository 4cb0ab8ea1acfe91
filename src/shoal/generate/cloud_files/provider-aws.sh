#!/bin/sh
# AWS: machines in the default network of a region, found again by their tag.
: "${KEY_NAME:?the name of your EC2 key pair, whose private key is SSH_KEY}"
export AWS_DEFAULT_REGION="$REGION" AWS_PAGER=""

create_network() {
  group="$(aws ec2 create-security-group --group-name "$NAME" \
    --description "Shoal cluster $NAME" --query GroupId --output text)"
  aws ec2 authorize-security-group-ingress --group-id "$group" \
    --protocol tcp --port 22 --cidr "$ADMIN_CIDR"
  aws ec2 authorize-security-group-ingress --group-id "$group" \
    --protocol tcp --port 9092-9093 --source-group "$group"
}

create_machine() { # create_machine NUMBER ZONE
  tags="Tags=[{Key=shoal,Value=$NAME},{Key=Name,Value=$NAME-$1}]"
  aws ec2 run-instances --image-id "$IMAGE" --instance-type "$MACHINE" \
    --key-name "$KEY_NAME" --security-group-ids "$group" \
    --placement "AvailabilityZone=$2" --user-data "file://$here/cloud-init.yaml" \
    --block-device-mappings "DeviceName=/dev/sda1,Ebs={VolumeSize=$DISK_GB,VolumeType=gp3}" \
    --tag-specifications "ResourceType=instance,$tags" \
    --query 'Instances[0].InstanceId' --output text
}

print_addresses() { # print_addresses NUMBER ZONE: the private and the public one
  aws ec2 wait instance-running --filters "Name=tag:Name,Values=$NAME-$1"
  aws ec2 describe-instances \
    --filters "Name=tag:Name,Values=$NAME-$1" "Name=instance-state-name,Values=running" \
    --query 'Reservations[0].Instances[0].[PrivateIpAddress,PublicIpAddress]' --output text
}

delete_everything() {
  ids="$(aws ec2 describe-instances --filters "Name=tag:shoal,Values=$NAME" \
    "Name=instance-state-name,Values=pending,running,stopping,stopped" \
    --query 'Reservations[].Instances[].InstanceId' --output text)"
  if [ -n "$ids" ]; then
    # shellcheck disable=SC2086 # one word for each machine
    aws ec2 terminate-instances --instance-ids $ids
    # shellcheck disable=SC2086
    aws ec2 wait instance-terminated --instance-ids $ids
  fi
  aws ec2 delete-security-group --group-name "$NAME"
}
